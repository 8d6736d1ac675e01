// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/internal/stats"
	"github.com/goverbs/goverbs/rdma/internal/counted"
)

// QP is a queue pair.
//
// Any number of goroutines may post to it at once, each with its own batch. Posting waits only for other posts and does
// not allocate. Posted work completes in the queue pair's completion queues; polling them releases its slots.
//
// A QP uses 728 bytes of Go memory in addition to C's; for its queues see [SendQueue].
//
// Man: ibv_create_qp(3)
type QP struct {
	object
	c           *ibv.QP
	ex          *ibv.QPEx // nil if the queue pair has no functions of ibv_wr_post(3)
	device      *Device
	pd          *PD // nil for an XRC_RECV queue pair
	srq         *SRQ
	sendCQ      *CQ // each may be nil
	recvCQ      *CQ
	send        *SendQueue // nil if it cannot send
	sends       *SendQueue // send, or a queue that rejects posts
	recv        *RecvQueue // nil without a receive queue, or with an SRQ
	native      *directQueue
	cap         ibv.QPCap // capacities without the reserve for markers
	options     QueueOptions
	destroyFunc func(*ibv.QP) error // destroys the queue pair in C
	owned       atomic.Pointer[owned]

	num     atomic.Uint32 // a target of dynamic connections (DCT) gets its number in RTR
	kind    ibv.QPType
	closing latch  // Close has begun
	lastWQE *latch // the queue pair consumes no more receives of the shared receive queue

	changes  sync.Mutex // guards changes of the state, and the fields below
	local    localEndpoint
	groups   map[mcastGroup]bool // multicast
	received bool                // it may have consumed receives of the shared receive queue since RESET
	sendMark drainMarker         // markers of canceled drains
	recvMark drainMarker
}

// queues returns the positions of the queues that count posted requests.
func (q *QP) queues() map[string]counted.Positions {
	all := map[string]counted.Positions{}
	if q.send != nil {
		all[stats.Send] = q.send.positions
	}
	if q.recv != nil {
		all[stats.Receive] = q.recv.positions
	}
	return all
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the QP.
func (q *QP) C() *ibv.QP { return whileOpen(&q.object, q.c) }

// CEx returns C's extended object, for a [WRProgram], or nil.
func (q *QP) CEx() *ibv.QPEx { return whileOpen(&q.object, q.ex) }

// Ptr returns the queue pair for use in attributes.
func (q *QP) Ptr() ibv.Ptr[ibv.QP] { return ptrWhileOpen(&q.object, q.c) }

// Num returns the queue pair number, in host byte order. A new queue pair may reuse the number of a closed one.
func (q *QP) Num() uint32 { return q.num.Load() }

// Type returns the type of the queue pair.
func (q *QP) Type() ibv.QPType { return q.kind }

// Cap returns the capacities: the requested number of work requests, and at least the requested numbers of entries and
// inline bytes.
func (q *QP) Cap() ibv.QPCap { return q.cap }

// PD returns the protection domain, or nil.
func (q *QP) PD() *PD { return q.pd }

// SendCQ returns the completion queue of sends, or nil.
func (q *QP) SendCQ() *CQ { return q.sendCQ }

// RecvCQ returns the completion queue of receives, or nil.
func (q *QP) RecvCQ() *CQ { return q.recvCQ }

// SRQ returns the shared receive queue, or nil.
func (q *QP) SRQ() *SRQ { return q.srq }

// State returns the state that the program last moved the queue pair to, as recorded by C. It may be out of date: after
// a failed completion the device has moved the queue pair to ERR, and on iWARP the kernel moves it to RTS. To query the
// device, call Query with IBV_QP_STATE. For a closed queue pair, State returns IBV_QPS_UNKNOWN.
func (q *QP) State() ibv.QPState {
	if q.use("State") != nil {
		return ibv.QPS_UNKNOWN
	}
	defer q.done()
	return q.state()
}

// state is State for callers that keep the queue pair open. C writes the state when another goroutine modifies the
// queue pair.
func (q *QP) state() ibv.QPState {
	return ibv.QPState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&q.c.State))))
}

// SendQueue returns the send queue, or nil. It is usable until the queue pair is closed.
func (q *QP) SendQueue() *SendQueue { return q.send }

// RecvQueue returns the queue pair's own receive queue, or nil.
func (q *QP) RecvQueue() *RecvQueue { return q.recv }

// PostSend posts a batch in one call. posted is the number of requests that were posted: all of them, none if a check
// rejects one, or those before the one that the device rejected. To continue, post the requests from posted on. The
// error is a [*PostError], or a [*VerbError] if the queue pair is closed or rejects all posts; errors.As finds a
// VerbError in both. An empty batch is an error, because it would have no completion.
//
// The memory of the requests, except inline data, belongs to the device until they have completed.
//
// C: ibv_post_send
//
// Man: ibv_post_send(3)
func (q *QP) PostSend(b *SendBatch) (posted int, err error) {
	return q.sends.Post(b)
}

func (q *QP) noSendQueue(verb string) error {
	return q.cannot(verb, "it has no send queue, because max_send_wr is 0 or send_cq is not set")
}

// PostRecv posts a batch to the queue pair's receive queue. It returns the same results as PostSend. The memory belongs
// to the device until the receives have completed.
//
// C: ibv_post_recv
//
// Man: ibv_post_recv(3)
func (q *QP) PostRecv(b *RecvBatch) (posted int, err error) {
	switch {
	case q.recv != nil:
		return q.recv.Post(b)
	case q.srq != nil:
		return 0, q.cannot("ibv_post_recv", "it uses a shared receive queue: post to "+q.srq.name)
	}
	return 0, q.cannot("ibv_post_recv",
		"it has no receive queue, because max_recv_wr is 0 or recv_cq is not set")
}

// PostProgram posts the requests of a program that was created for this queue pair: all of them or, with an error,
// none. Their memory belongs to the device until they have completed.
//
// C: ibv_wr_start, ibv_wr_complete
//
// Man: ibv_wr_post(3)
func (q *QP) PostProgram(p *WRProgram) error {
	if q.send == nil {
		return q.noSendQueue("ibv_wr_start")
	}
	if p == nil {
		return isNil("ibv_wr_start", q.name, "program")
	}
	return q.send.PostProgram(p)
}

// cannot returns the error of a verb that the queue pair does not support, or ErrClosed.
func (q *QP) cannot(verb, why string) error {
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	return &VerbError{Verb: verb, Object: q.name, Errno: syscall.EINVAL, Reason: why}
}

// NewWRProgram creates an empty program for an extended queue pair. The queue pair must stay open while the program is
// built and run.
//
// Man: ibv_wr_post(3)
func (q *QP) NewWRProgram() (*WRProgram, error) {
	if q.ex == nil {
		return nil, q.cannot("ibv_wr_start", "it was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")
	}
	if err := q.use("ibv_wr_start"); err != nil {
		return nil, err
	}
	defer q.done()
	return NewWRProgram(q.ex), nil
}

// Query returns the attributes that mask selects; the device may return more. Capacities are those of the device after
// rounding. They include a slot in each queue for the marker of a drain, which [QP.Cap] does not. If another library
// has connected the queue pair, query IBV_QP_MAX_QP_RD_ATOMIC to update the limit that checks use for reads.
//
// C: ibv_query_qp
//
// Man: ibv_query_qp(3)
func (q *QP) Query(mask ibv.QPAttrMask) (*ibv.QPAttr, *ibv.QPInitAttr, error) {
	const verb = "ibv_query_qp"
	attr, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	if err := q.use(verb); err != nil {
		return attr, init, err
	}
	defer q.done()
	err := libibverbs.QueryQP(q.c, attr, mask, init)
	known := attr.MaxRdAtomic > 0 || q.device.info.Transport != ibv.TRANSPORT_IWARP // iWARP drivers may return 0
	if err == nil && q.native != nil && q.changes.TryLock() {                       // not during a drain
		err = whileNotPosting(q.send, q.recv, func() error { return q.native.misuse(verb, q.name) })
		q.changes.Unlock()
	}
	if err == nil && mask&ibv.QP_MAX_QP_RD_ATOMIC != 0 && q.state() == ibv.QPS_RTS && known {
		q.limitReads(attr.MaxRdAtomic)
	}
	return attr, init, wrap(verb, q.name, err)
}

// DataInOrder reports whether the device writes the data of an operation in the order of its addresses.
//
// C: ibv_query_qp_data_in_order
//
// Man: ibv_query_qp_data_in_order(3)
func (q *QP) DataInOrder(op ibv.WROpcode, flags ibv.QueryQPDataInOrderFlags) (caps int, err error) {
	const verb = "ibv_query_qp_data_in_order"
	if err := q.use(verb); err != nil {
		return 0, err
	}
	defer q.done()
	caps, err = libibverbs.QueryQPDataInOrder(q.c, op, flags)
	return caps, wrap(verb, q.name, err)
}

// ECE returns the vendor's connection options that the device supports. Peers exchange them together with their
// endpoints.
//
// C: ibv_query_ece
//
// Man: ibv_query_ece(3)
func (q *QP) ECE() (*ibv.ECE, error) {
	const verb = "ibv_query_ece"
	ece := new(ibv.ECE)
	if err := q.use(verb); err != nil {
		return ece, err
	}
	defer q.done()
	return ece, wrap(verb, q.name, libibverbs.QueryECE(q.c, ece))
}

// SetECE sets the vendor's connection options. Call it before the queue pair enters RTR.
//
// C: ibv_set_ece
//
// Man: ibv_set_ece(3)
func (q *QP) SetECE(ece *ibv.ECE) error {
	const verb = "ibv_set_ece"
	if ece == nil {
		return noAttributes(verb, q.name)
	}
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	return wrap(verb, q.name, libibverbs.SetECE(q.c, ece))
}

// closeDrains is the time Close waits for outstanding work before it destroys the queue pair anyway.
const closeDrains = 2 * time.Second

// idle reports whether no request can be outstanding.
func (q *QP) idle() bool {
	switch {
	case q.state() == ibv.QPS_RESET:
		return true
	case q.options.Unchecked, q.srq != nil && q.received, q.sendMark.done != nil, q.recvMark.done != nil:
		return false
	}
	return (q.send == nil || q.send.idle()) && (q.recv == nil || q.recv.idle())
}

// refusePosts makes both queues reject posts with ErrClosed.
func (q *QP) refusePosts() {
	q.refuse(&VerbError{Object: q.name, Errno: syscall.EINVAL, Err: ErrClosed})
}

// reviveAfterFailedClose makes the queue pair usable again if Close failed to destroy it.
func (q *QP) reviveAfterFailedClose() {
	q.closing.reset()
	q.refuse(nil)
}

// drainForClose drains the queue pair before it is destroyed.
func (q *QP) drainForClose() error {
	q.changes.Lock()
	defer q.changes.Unlock()
	if q.native.misuse("Close", q.name) == nil && !q.idle() {
		ctx, cancel := context.WithTimeout(context.Background(), closeDrains)
		defer cancel()
		// ignore the error: destroying the queue pair releases the memory in any case
		_ = q.drain(drainContext{Context: ctx})
	}
	return nil
}

// destroyC destroys the queue pair. It already rejects posts.
func (q *QP) destroyC(c *ibv.QP) error {
	q.changes.Lock()
	defer q.changes.Unlock()
	misuse := q.native.misuse("Close", q.name)
	q.collect() // to release slots of a shared receive queue
	q.leaveGroups()
	q.untrack() // another queue pair may reuse the number as soon as this one is destroyed
	if err := q.native.destroy(func() error { return q.destroyFunc(c) }); err != nil {
		q.track()
		return err
	}
	q.collect()
	if q.send != nil {
		q.send.resetIdle(q.sendCQ) // work that was not drained has no completion
	}
	if q.recv != nil {
		q.recv.resetIdle(q.recvCQ)
	}
	q.sendMark.forget()
	q.recvMark.forget()
	q.releaseAllRoom()
	return late(misuse)
}

// Close drains the queue pair for at most two seconds and destroys it. The device then no longer uses the memory of its
// requests. Remaining completions can still be polled, unless [Device.NewRC], NewUC or NewUD created the completion
// queue: Close closes it as well, and the regions of [QP.RegMR].
//
// C: ibv_destroy_qp
//
// Man: ibv_create_qp(3)
func (q *QP) Close() error {
	if len(q.parts()) == 0 {
		return q.end()
	}
	return CloseAll(nil, q)
}

// refuse makes both queues reject posts with an error, or accept posts again if why is nil.
func (q *QP) refuse(why *VerbError) {
	of := func(verb string) error {
		if why == nil {
			return nil
		}
		own := *why
		own.Verb = verb
		return &own
	}
	if q.send != nil {
		q.send.refuse(of("ibv_post_send"))
	}
	if q.recv != nil {
		q.recv.refuse(of("ibv_post_recv"))
	}
}

// onEFA, onERDMA and onSIW report whether the queue pair is one of EFA, erdma or Soft-iWARP.
func (q *QP) onEFA() bool   { return q.on("efa") }
func (q *QP) onERDMA() bool { return q.on("erdma") }
func (q *QP) onSIW() bool   { return q.on("siw") }

func (q *QP) on(driver string) bool {
	c := q.device.C()
	return q.send != nil && driverOf(q.send.Provider(), ibv.PtrTo(c)) == driver ||
		q.recv != nil && driverOf(q.recv.Provider(), ibv.PtrTo(c)) == driver
}

// transitionType returns the type whose state transitions apply: UD for EFA's reliable datagrams.
func (q *QP) transitionType() ibv.QPType {
	if q.kind == ibv.QPT_DRIVER && q.onEFA() {
		return ibv.QPT_UD
	}
	return q.kind
}

// checkCounted returns an error if a drain needs a count of outstanding requests and the queue pair has none.
func (q *QP) checkCounted() error {
	if !q.options.Unchecked || !q.onEFA() && !q.onERDMA() {
		return nil
	}
	return &VerbError{Verb: "Drain", Object: q.name, Errno: syscall.EINVAL, Reason: "its provider rejects posts in " +
		"ERR, and an unchecked queue pair does not count its requests: create it without QueueOptions.Unchecked, or " +
		"poll until each request has completed"}
}
