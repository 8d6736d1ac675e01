// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/trace"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// A post takes these steps:
//
//  1. QP.PostSend calls SendQueue.Post, which performs steps 3 to 6 inline for a single request with one entry on a
//     checked queue. Other batches go to queue.post (queue.go). A queue without checks and owner calls C directly.
//  2. If the batch changed since its last post, post terminates the chain after the last request and rejects copies,
//     closed batches, and UD addresses in requests for a connected queue pair.
//  3. It locks slots.mu. Close, drain and resize lock it too; close and drain set refusal.
//  4. reserveUniform or reserveSends check each request against the rule of its opcode (checks.go), store its wr_id and
//     its signalled bit in the slot ring, and advance posted (slots.go). If a request breaks a rule or no slot is free,
//     nothing is reserved, and explain finds the request and the reason.
//  5. The list is passed to the C function on the system stack (a plain queue), or to the queue's Path: C through the Go
//     scheduler, a software device, or a data path in Go such as mlx5's, which ends by ringing the doorbell.
//  6. If the device rejects a request, the earlier ones are posted. undo frees the slots of the others, and the
//     PostError names the request. If the device does not name one, all slots stay reserved.
//  7. It unlocks slots.mu. Polling frees slots without that lock: see slots.

// SendQueue posts to the send queue of a queue pair. Post, PostRange, PostProgram and BindMW post requests; Free and
// Retire account for slots. It is safe for concurrent use, if each goroutine has its own batch.
//
// On 64-bit machines a send queue occupies 320 bytes and a receive queue 384. A checked queue needs another 8 bytes and
// one bit per slot; the number of slots is rounded up to a power of two. A post touches two cache lines of the queue
// and one or two of its slots.
//
// Man: ibv_post_send(3)
type SendQueue struct {
	queue
	avoidSetters bool // the provider's ibv_wr_set_* functions mishandle irregular requests; ibv_post_send does not

	_ [15]byte // pads to a size class that is aligned to cache lines
}

// NewSendQueue returns the send queue of a C queue pair, which must outlive it. For a [QP], use [QP.SendQueue]. The
// provider's functions are read once, because providers do not change them after opening the device.
func NewSendQueue(qp *ibv.QP, o QueueOptions) (*SendQueue, error) {
	if qp == nil || qp.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_send", Argument: "qp"}
	}
	q := new(SendQueue)
	q.qp, q.num, q.verb = qp, qp.QPNum, "ibv_post_send"
	if err := q.init(qp.Context.Deref().Ops.PostSend, unsafe.Pointer(qp), provider.PostSend, &o); err != nil {
		return nil, err
	}
	q.avoidSetters = provider.HasDefect(q.provider, "sge-list")
	if o.Unchecked {
		return q, nil
	}
	driver := driverOf(q.provider, qp.Context)
	o.restrict(driver)
	l := limitsOf(qp.QPType, &o)
	_, byPath := trace.Under(q.path).(datapath.Dynamic)
	l.dynamic = (driver == "mlx5" || byPath) && qp.QPType == ibv.QPT_DRIVER
	if device := qp.Context.Deref().Device.Deref(); device != nil {
		l.iwarp = device.TransportType == ibv.TRANSPORT_IWARP
	}
	q.checks, q.checked, q.connected = sendChecksOf(l), true, !takesAddresses(qp.QPType)
	return q, q.count(int(o.Cap.MaxSendWR), o.SQSigAll)
}

// limit changes the limits that a checked queue enforces.
func (q *SendQueue) limit(change func(*sendLimits)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks != nil {
		l := q.checks.sendLimits
		change(&l)
		q.checks = sendChecksOf(l)
	}
}

// limitMessages makes the checks reject longer messages.
func (q *SendQueue) limitMessages(most uint32) {
	q.limit(func(l *sendLimits) { l.longest = cmp.Or(most, largestMessage) })
}

// limitReads makes the checks reject reads and atomic operations if atOnce is 0.
func (q *SendQueue) limitReads(atOnce uint8) {
	q.limit(func(l *sendLimits) { l.noReads = atOnce == 0 })
}

// refusingSendQueue returns a queue that rejects every post, for a queue pair without a send queue.
func refusingSendQueue(qp *ibv.QP, why error) *SendQueue {
	q := new(SendQueue)
	q.qp, q.num, q.verb = qp, qp.QPNum, "ibv_post_send"
	q.locked, q.refusal = true, why
	return q
}

// Post posts the batch in one call. It returns the number of posted requests: all of them, none if a check rejected
// one, or those before the one that the device rejected. The error is a [*PostError], or the reason why the queue
// rejects all posts. Posting an empty batch is an error.
func (q *SendQueue) Post(b *SendBatch) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_send")
	}
	if b == nil {
		return 0, q.batchError(errBatchNil)
	}
	if q.direct && b.n == b.linked && b.bad != nil {
		if result := q.callDirect(&b.batch); result != 0 {
			return q.notPosted(&b.batch, 0, b.n, reservation{}, result)
		}
		return b.n, nil
	}
	if b.n != 1 || b.linked != 1 || b.guard != address(&b.batch) || !q.checked && !q.hasPostOne {
		return q.postAll(&b.batch)
	}
	w := ibv.Ptr[ibv.SendWR](b.first).Deref()
	if w.NumSGE != 1 {
		return q.postAll(&b.batch)
	}
	_ = *w.SGList.Deref() // a bad address panics here, before the lock is held
	q.mu.Lock()
	if q.hasPostOne && q.refusal == nil {
		ok := false
		switch {
		case w.SendFlags&ibv.SEND_INLINE != 0:
			ok = q.postOneInline(w)
		case q.capacity == 0:
			ok = q.quick.PostOne(w)
		default:
			ok = q.postOne(w)
		}
		if ok {
			q.mu.Unlock()
			return 1, nil
		}
		return q.postRest(b)
	}
	if !q.plain {
		return q.postRest(b)
	}
	m, ok := q.reserveOne(w)
	if !ok {
		return q.postRest(b)
	}
	posted = 1
	if result := q.callDirect(&b.batch); result != 0 {
		posted, err = q.notPosted(&b.batch, 0, 1, m, result)
	}
	goruntime.KeepAlive(b)
	q.mu.Unlock()
	return posted, err
}

// postRest completes Post for requests that the fast path does not take. It unlocks slots.mu.
func (q *SendQueue) postRest(b *SendBatch) (posted int, err error) {
	defer q.unlock()
	return q.postLocked(&b.batch, 0, 1)
}

// PostRange posts requests from through to-1, for example the rest of a batch after a failure. An empty range is not an
// error.
func (q *SendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_send")
	}
	if b == nil {
		return 0, q.batchError(errBatchNil)
	}
	return q.post(&b.batch, from, to)
}

// reserveOne checks a request with one entry and reserves a slot for it. If the request needs more checks, it returns
// false and changes nothing. The caller holds slots.mu.
func (q *SendQueue) reserveOne(w *ibv.SendWR) (m reservation, ok bool) {
	checks, at := q.checks, q.posted.Load()
	rule := checks.rule(w)
	if w.Opcode >= knownOpcodes || w.SendFlags&rule.denied != 0 || w.SGList.Deref().Length >= rule.maxSingle ||
		!checks.inState(q.qp) || int32(q.slots.limit-at) < 2 {
		return m, false
	}
	m.posted, m.signal = at, q.signal
	if q.mixed.Load() {
		q.setSignal(at, w)
	} else if w.SendFlags&ibv.SEND_SIGNALED == 0 && !q.everyOne {
		return m, false
	}
	*q.id(at) = w.WRID
	lock.StoreRelease32(&q.posted, at+1)
	return m, true
}

// postOne posts a request through the path's PostOne. It returns false and changes nothing if a check, the slots or the
// path reject the request. The caller holds slots.mu.
func (q *SendQueue) postOne(w *ibv.SendWR) bool {
	if q.capacity == 0 {
		return q.quick.PostOne(w)
	}
	m, ok := q.reserveOne(w)
	if ok && !q.quick.PostOne(w) {
		q.undo(m, 0)
		return false
	}
	return ok
}

// postOneInline is postOne for a request with inline data. The path copies the data and panics if its memory is not
// mapped. The caller holds slots.mu; a panic unlocks it.
func (q *SendQueue) postOneInline(w *ibv.SendWR) (ok bool) {
	m, over := reservation{posted: q.posted.Load(), signal: q.signal}, false
	defer func() {
		if !over {
			q.undo(m, 0)
			q.mu.Unlock()
		}
	}()
	ok = q.postOne(w)
	over = true
	return ok
}

// Retire frees the slots of completed requests: a completion, successful or not, frees the slot of its request and
// those of all earlier requests. Retire ignores completions of other queues. A [CompletionQueue] that tracks the queue
// calls it automatically. Programs that poll in another way must pass all completions of the queue to Retire, in the
// order in which they were polled, from one goroutine at a time. A failed completion does not record whether it belongs
// to a send or a receive, so the two queues of a queue pair should use different wr_ids.
func (q *SendQueue) Retire(wcs []ibv.WC) {
	for i := range wcs {
		q.retireWC(&wcs[i])
	}
}

// retireWC retires one completion and reports whether it belongs to the queue.
func (q *SendQueue) retireWC(wc *ibv.WC) bool {
	succeeded := wc.Status == ibv.WC_SUCCESS
	if wc.QPNum != q.num || succeeded && !isSendCompletion(wc.Opcode) {
		return false
	}
	return q.retire(wc.WRID, succeeded)
}

// isSendCompletion reports whether a successful completion belongs to a send queue. Vendor-specific opcodes do.
func isSendCompletion(op ibv.WCOpcode) bool { return op < ibv.WC_RECV || op > ibv.WC_TM_NO_TAG }
