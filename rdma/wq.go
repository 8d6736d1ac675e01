package rdma

import (
	"fmt"
	"math/bits"
	goruntime "runtime"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/life"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// WQ is a work queue: a receive queue by itself, of which a table makes the receiving side of a queue pair.
//
// A WQ does not count its slots, for a completion bears the number of a queue pair and not of a work queue: who posts keeps no more
// receives outstanding than it holds.
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

// CreateWQ makes a work queue in state RESET. attr names its completion queue and protection domain by their Ptr methods; max_wr and max_sge
// are what C gives at least, and Cap tells how many they became. o says how posts are made.
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
	w := &WQ{pd: pd, cq: cq, cap: *attr}
	create := func() (*ibv.WQ, error) {
		c, err := libibverbs.CreateWQ(d.c, &w.cap)
		if err != nil {
			return nil, err
		}
		if err = cq.admit(int(w.cap.MaxWR), nil, o.Overcommit); err == nil {
			if w.queue, err = wq.NewWorkQueue(c, o); err == nil {
				w.num = c.WQNum
				return c, nil
			}
			cq.dismiss(int(w.cap.MaxWR), nil)
		}
		libibverbs.DestroyWQ(c)
		return nil, err
	}
	destroy := func(c *ibv.WQ) error {
		if err := libibverbs.DestroyWQ(c); err != nil {
			return err
		}
		cq.dismiss(int(w.cap.MaxWR), nil)
		return nil
	}
	w.life.Hooks = life.Hooks{
		Lent: func() error { return wq.Lent(w.queue) },
		Stop: func() error {
			return wq.Refuse(w.queue, &VerbError{Verb: "ibv_post_wq_recv", Object: w.name, Errno: einval, Err: ErrClosed})
		},
		Revive: func() { wq.Refuse(w.queue, nil) },
	}
	err = birth(d, &w.object, &w.c, w, "WQ", verb, create, destroy,
		func(c *ibv.WQ) string { return fmt.Sprintf("WQ %#x", c.WQNum) }, &cq.object, &pd.object)
	return made(w, err)
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the WQ.
func (w *WQ) C() *ibv.WQ { return whileOpen(&w.object, w.c) }

// Ptr is the queue as attributes name it.
func (w *WQ) Ptr() ibv.Ptr[ibv.WQ] { return ptrWhileOpen(&w.object, w.c) }

// Num is the queue's number, in host byte order.
func (w *WQ) Num() uint32 { return w.num }

// Cap is how many receives (MaxWR), of how many entries (MaxSGE), the queue holds: at least what was asked for.
func (w *WQ) Cap() (maxWR, maxSGE uint32) { return w.cap.MaxWR, w.cap.MaxSGE }

// State is where Modify moved the queue to last, and IBV_WQS_UNKNOWN once it is closed.
func (w *WQ) State() ibv.WQState {
	if w.use("State") != nil {
		return ibv.WQS_UNKNOWN
	}
	defer w.done()
	return ibv.WQState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&w.c.State))))
}

// PostRecv posts a whole batch in one call, in state RDY or ERR. The memory is the device's until the receives have completed. Any number of
// goroutines may post at once, each with its own batch; it does not block. The error is a [*PostError], or that of the batch.
//
// C: ibv_post_wq_recv
func (w *WQ) PostRecv(b *RecvBatch) (posted int, err error) { return w.queue.Post(b) }

// Modify changes the queue's state or flags, as attr.AttrMask says: RESET to RDY is what makes it receive, ERR what flushes it, RESET what drops
// all that is posted without completions.
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
	if err := libibverbs.ModifyWQ(w.c, attr); err != nil {
		return wrap(verb, w.name, err)
	}
	if attr.AttrMask&ibv.WQ_ATTR_STATE != 0 {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&w.c.State)), uint32(attr.WQState)) // not every provider writes it down
	}
	return nil
}

// Close destroys the queue. Tables that it is in have to be closed before. Receives that are posted end without a completion.
//
// C: ibv_destroy_wq
//
// Man: ibv_create_wq(3)
func (w *WQ) Close() error { return w.end() }

// RWQIndTable is a table of work queues, over which received packets are spread by a hash.
//
// Man: ibv_create_rwq_ind_table(3)
type RWQIndTable struct {
	object
	c *ibv.RWQIndTable
}

// CreateRWQIndTable makes a table of a power of two of work queues, which may be in it more than once. None of them can be closed before it.
// [Device.CreateQPEx] takes it, with the hash that chooses one.
//
// C: ibv_create_rwq_ind_table
//
// Man: ibv_create_rwq_ind_table(3)
func (d *Device) CreateRWQIndTable(table []*WQ) (*RWQIndTable, error) {
	const verb = "ibv_create_rwq_ind_table"
	if n := len(table); n == 0 || n&(n-1) != 0 {
		return nil, invalid(verb, d.name, "a table has a power of two of entries, not %d", n)
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
	err := birth(d, &t.object, &t.c, t, "RWQ table", verb, create, libibverbs.DestroyRWQIndTable,
		func(c *ibv.RWQIndTable) string { return fmt.Sprintf("RWQ table %#x", c.IndTblNum) }, parents...)
	return made(t, err)
}

// C is the object of C, for calls of generated/libibverbs. It belongs to the RWQIndTable.
func (t *RWQIndTable) C() *ibv.RWQIndTable { return whileOpen(&t.object, t.c) }

// Ptr is the table as attributes name it.
func (t *RWQIndTable) Ptr() ibv.Ptr[ibv.RWQIndTable] { return ptrWhileOpen(&t.object, t.c) }

// Close destroys the table. Queue pairs that use it have to be closed before.
//
// C: ibv_destroy_rwq_ind_table
//
// Man: ibv_create_rwq_ind_table(3)
func (t *RWQIndTable) Close() error { return t.end() }
