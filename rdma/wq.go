// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"math/bits"
	goruntime "runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/life"
)

// WQ is a work queue: a receive queue without a queue pair. A queue pair can receive through a table of work queues,
// [RWQIndTable].
//
// A WQ does not count its slots, because completions do not identify work queues. The caller must not post more
// receives than the queue can hold.
//
// Man: ibv_create_wq(3)
type WQ struct {
	object
	c     *ibv.WQ
	num   uint32
	pd    *PD
	cq    *CQ
	cap   ibv.WQInitAttr
	queue *RecvQueue
}

// CreateWQ creates a work queue in state RESET. Set the completion queue and the protection domain in attr with their
// Ptr methods. Cap returns the actual capacities, which are at least max_wr and max_sge.
//
// C: ibv_create_wq
//
// Man: ibv_create_wq(3)
func (d *Device) CreateWQ(attr *ibv.WQInitAttr, o QueueOptions) (*WQ, error) {
	const verb = "ibv_create_wq"
	if attr == nil {
		return nil, noAttributes(verb, d.name)
	}
	pd, err := named[PD](d, verb, d.name, "PD", uintptr(attr.PD))
	if err != nil {
		return nil, err
	}
	cq, err := named[CQ](d, verb, d.name, "CQ", uintptr(attr.CQ))
	if err != nil {
		return nil, err
	}
	d.pathFor(&o)
	if _, is := o.Path.(datapath.Maker); is || cq.native != nil {
		return nil, otherPath(verb, d.name, "a work queue")
	}
	w := &WQ{pd: pd, cq: cq, cap: *attr}
	create := func() (*ibv.WQ, error) {
		c, err := libibverbs.CreateWQ(d.c, &w.cap)
		if err != nil {
			return nil, err
		}
		if err = cq.admit(int(w.cap.MaxWR), nil, o.Overcommit); err == nil {
			if w.queue, err = newWorkQueue(c, o); err == nil {
				w.num = c.WQNum
				return c, nil
			}
			cq.dismiss(int(w.cap.MaxWR), nil)
		}
		libibverbs.DestroyWQ(c)
		return nil, err
	}
	destroy := func(c *ibv.WQ) error {
		cq.queue.pollAside() // before C discards completions
		if err := libibverbs.DestroyWQ(c); err != nil {
			return err
		}
		cq.queue.pollAside()
		cq.dismiss(int(w.cap.MaxWR), nil)
		return nil
	}
	w.life.Hooks = life.Hooks{
		Stop: func() {
			w.queue.refuse(&VerbError{Verb: "ibv_post_wq_recv", Object: w.name, Errno: syscall.EINVAL, Err: ErrClosed})
		},
		Revive: func() { w.queue.refuse(nil) },
	}
	err = createObject(d, &w.object, &w.c, w, verb, create, destroy,
		func(c *ibv.WQ) string { return fmt.Sprintf("WQ %#x", c.WQNum) }, &cq.object, &pd.object)
	return made(w, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the WQ.
func (w *WQ) C() *ibv.WQ { return whileOpen(&w.object, w.c) }

// Ptr returns the queue for use in attributes.
func (w *WQ) Ptr() ibv.Ptr[ibv.WQ] { return ptrWhileOpen(&w.object, w.c) }

// Num returns the queue's number, in host byte order.
func (w *WQ) Num() uint32 { return w.num }

// Cap returns the number of receives and the number of entries of each. Both are at least the requested numbers.
func (w *WQ) Cap() (maxWR, maxSGE uint32) { return w.cap.MaxWR, w.cap.MaxSGE }

// State returns the state that Modify last set, and IBV_WQS_UNKNOWN after Close.
func (w *WQ) State() ibv.WQState {
	if w.use("State") != nil {
		return ibv.WQS_UNKNOWN
	}
	defer w.done()
	return ibv.WQState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&w.c.State))))
}

// PostRecv posts a batch in one call. The queue must be in state RDY or ERR. The memory belongs to the device until the
// receives have completed. PostRecv does not block. Any number of goroutines may post at once, each with its own batch.
// The error is a [*PostError] or a [*VerbError].
//
// C: ibv_post_wq_recv
func (w *WQ) PostRecv(b *RecvBatch) (posted int, err error) {
	if w.queue == nil { // the zero value
		return 0, w.use("ibv_post_wq_recv")
	}
	return w.queue.Post(b)
}

// Modify changes the queue's state or flags, as selected by attr.AttrMask. RDY starts receiving, ERR flushes posted
// receives, and RESET discards them without completions. Earlier completions can still be polled.
//
// C: ibv_modify_wq
//
// Man: ibv_modify_wq(3)
func (w *WQ) Modify(attr *ibv.WQAttr) error {
	const verb = "ibv_modify_wq"
	if err := w.use(verb); err != nil {
		return err
	}
	defer w.done()
	if attr == nil {
		return noAttributes(verb, w.name)
	}
	reset := attr.AttrMask&ibv.WQ_ATTR_STATE != 0 && attr.WQState == ibv.WQS_RESET
	if reset {
		w.cq.queue.pollAside() // before C discards completions
	}
	if err := libibverbs.ModifyWQ(w.c, attr); err != nil {
		return wrap(verb, w.name, err)
	}
	if reset {
		w.cq.queue.pollAside() // libmlx5 discards completions that arrived since when the queue leaves RESET
	}
	if attr.AttrMask&ibv.WQ_ATTR_STATE != 0 {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&w.c.State)), uint32(attr.WQState)) // some providers do not record it
	}
	return nil
}

// Close destroys the queue. Close its tables first. Posted receives are discarded without completions. Remaining
// completions can still be polled.
//
// C: ibv_destroy_wq
//
// Man: ibv_create_wq(3)
func (w *WQ) Close() error { return w.end() }

// RWQIndTable is an indirection table of work queues, among which a hash distributes received packets.
//
// Man: ibv_create_rwq_ind_table(3)
type RWQIndTable struct {
	object
	c *ibv.RWQIndTable
}

// CreateRWQIndTable creates a table. Its number of entries must be a power of two; a queue may occur more than once.
// Close the table before its queues. Pass it, with the hash, to [Device.CreateQPEx].
//
// C: ibv_create_rwq_ind_table
//
// Man: ibv_create_rwq_ind_table(3)
func (d *Device) CreateRWQIndTable(table []*WQ) (*RWQIndTable, error) {
	const verb = "ibv_create_rwq_ind_table"
	if n := len(table); n == 0 || n&(n-1) != 0 {
		return nil, invalid(verb, d.name, "the table has %d entries; the number must be a power of two", n)
	}
	t := &RWQIndTable{}
	entries := make([]ibv.Ptr[ibv.WQ], len(table))
	var parents []*object
	for i, w := range table {
		if w == nil {
			return nil, invalid(verb, d.name, "entry %d is nil", i)
		}
		entries[i] = w.Ptr()
		parents = append(parents, &w.object)
	}
	create := func() (*ibv.RWQIndTable, error) {
		defer goruntime.KeepAlive(entries)
		return libibverbs.CreateRWQIndTable(d.c, &ibv.RWQIndTableInitAttr{
			LogIndTblSize: uint32(bits.Len(uint(len(entries))) - 1), IndTbl: ibv.PtrTo(unsafe.SliceData(entries)),
		})
	}
	err := createObject(d, &t.object, &t.c, t, verb, create, libibverbs.DestroyRWQIndTable,
		func(c *ibv.RWQIndTable) string { return fmt.Sprintf("RWQ table %#x", c.IndTblNum) }, parents...)
	return made(t, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the RWQIndTable.
func (t *RWQIndTable) C() *ibv.RWQIndTable { return whileOpen(&t.object, t.c) }

// Ptr returns the table for use in attributes.
func (t *RWQIndTable) Ptr() ibv.Ptr[ibv.RWQIndTable] { return ptrWhileOpen(&t.object, t.c) }

// Close destroys the table. Close queue pairs that use it first.
//
// C: ibv_destroy_rwq_ind_table
//
// Man: ibv_create_rwq_ind_table(3)
func (t *RWQIndTable) Close() error { return t.end() }
