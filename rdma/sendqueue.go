// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// A post reaches the device in these steps:
//
//  1. QP.PostSend calls SendQueue.Post, which does steps 3 to 6 by itself for one request with one entry to a checked
//     queue. Everything else goes to queue.post (queue.go). A queue without checks and without an owner calls C at once.
//  2. If the batch was changed since its last post, post ends the chain after the last request, and rejects copies,
//     closed batches and requests with a datagram's address for a connected queue pair.
//  3. slots.mu is taken. Closing, draining and resizing take it as well; the first two set refusal.
//  4. takeAlike or takeSend compare each request with the rule of its opcode (checks.go), write its wr_id into the
//     ring of slots, note whether it is signalled, and count the list as posted (slots.go). Nothing is counted if
//     one request breaks a rule or finds no slot: explain then finds out which, and why.
//  5. The list goes to C's function on the thread's system stack (a plain queue), or by the queue's Path: C through
//     Go's scheduler, a software backend, or a data path in Go such as mlx5's, whose last store is the doorbell.
//  6. If the device refuses a request, those before it are posted. Their slots stay taken, undo gives back the others,
//     and the PostError names the request. If the device does not name the refused request, all slots stay taken.
//  7. slots.mu is released. Polling gives slots back without it: see slots.

// SendQueue posts to the send queue of a queue pair. Post, PostRange, PostProgram and BindMW post; Free and Retire
// count slots. Any number of goroutines may use it at once, each with its own batch.
//
// On 64-bit machines a send queue takes 320 bytes, a receive queue 384. A checked one takes 8 bytes and one bit more
// for each of its slots, whose number is rounded up to a power of two. A post uses two cache lines of the queue and one
// or two of its slots.
//
// Man: ibv_post_send(3)
type SendQueue struct {
	queue
	avoidSetters bool // the provider's setters of programs mishandle irregular requests; ibv_post_send does not

	_ [15]byte // fills the size up to one that Go aligns to cache lines
}

// NewSendQueue returns the send queue of a queue pair, which has to outlive it; see [QP.SendQueue] for that of an
// object. It reads the function's slot now: providers set the functions of a context when they open it, and never
// change them.
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
	l.dynamic = driver == "mlx5" && qp.QPType == ibv.QPT_DRIVER
	if device := qp.Context.Deref().Device.Deref(); device != nil {
		l.iwarp = device.TransportType == ibv.TRANSPORT_IWARP
	}
	q.checks, q.checked, q.connected = sendChecksOf(l), true, !takesAddresses(qp.QPType)
	return q, q.count(int(o.Cap.MaxSendWR), o.SQSigAll)
}

// limit changes the limits of a checked queue.
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

// limitReads makes the checks reject reads and atomic operations if none may be in flight, or accept them again.
func (q *SendQueue) limitReads(atOnce uint8) {
	q.limit(func(l *sendLimits) { l.noReads = atOnce == 0 })
}

// refusingSendQueue takes the place of a missing send queue: it rejects every post with an error.
func refusingSendQueue(qp *ibv.QP, why error) *SendQueue {
	q := new(SendQueue)
	q.qp, q.num, q.verb = qp, qp.QPNum, "ibv_post_send"
	q.locked, q.refusal = true, why
	return q
}

// Post posts the batch in one call. posted is the number of requests that were posted: all of them, none if a check
// rejects one, or those before the one that the device rejected. The error is a [*PostError], or the reason why the
// queue rejects all posts. An empty batch is an error.
func (q *SendQueue) Post(b *SendBatch) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_send")
	}
	if b == nil {
		return 0, q.unfit(errBatchNil)
	}
	if q.direct && b.n == b.linked && b.bad != nil {
		if result := q.callDirect(&b.batch); result != 0 {
			return q.notPosted(&b.batch, 0, b.n, mark{}, result)
		}
		return b.n, nil
	}
	if b.n != 1 || b.linked != 1 || b.home != address(&b.batch) || !q.checked && !q.short {
		return q.postAll(&b.batch)
	}
	w := ibv.Ptr[ibv.SendWR](b.first).Deref()
	if w.NumSGE != 1 {
		return q.postAll(&b.batch)
	}
	_ = *w.SGList.Deref() // panics if the user set a bad address: here, since a panic below would leave the lock taken
	q.mu.Lock()
	if q.short && q.refusal == nil {
		ok := false
		switch {
		case w.SendFlags&ibv.SEND_INLINE != 0:
			ok = q.oneInline(w)
		case q.capacity == 0:
			ok = q.quick.PostOne(w)
		default:
			ok = q.one(w)
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
	m, ok := q.takeOne(w)
	if !ok {
		return q.postRest(b)
	}
	if result := q.callDirect(&b.batch); result != 0 {
		return q.oneNotPosted(b, m, result)
	}
	goruntime.KeepAlive(b)
	q.mu.Unlock()
	return 1, nil
}

// postRest is the rest of Post. It releases slots.mu.
func (q *SendQueue) postRest(b *SendBatch) (posted int, err error) {
	defer q.unlock()
	return q.postHeld(&b.batch, 0, 1)
}

// oneNotPosted is notPosted of a batch of one. It releases slots.mu.
func (q *SendQueue) oneNotPosted(b *SendBatch, m mark, result int32) (posted int, err error) {
	defer q.mu.Unlock()
	return q.notPosted(&b.batch, 0, 1, m, result)
}

// PostRange posts the requests from index from to index to, exclusive, such as the rest of a batch after a failure. An
// empty range posts nothing and is no error.
func (q *SendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	if q == nil {
		return 0, verberr.NotCreated("ibv_post_send")
	}
	if b == nil {
		return 0, q.unfit(errBatchNil)
	}
	return q.post(&b.batch, from, to)
}

// takeOne checks a request with one entry and takes a slot for it. It returns false and does nothing if a rule needs a
// closer look. The caller holds slots.mu.
func (q *SendQueue) takeOne(w *ibv.SendWR) (m mark, ok bool) {
	checks, at := q.checks, q.posted.Load()
	rule := checks.rule(w)
	if w.Opcode >= knownOpcodes || w.SendFlags&rule.denied != 0 || w.SGList.Deref().Length >= rule.alone ||
		!checks.inState(q.qp) || int32(q.slots.limit-at) < 2 {
		return m, false
	}
	m.posted, m.signal = at, q.signal
	if q.mixed.Load() {
		q.signalOne(at, w)
	} else if w.SendFlags&ibv.SEND_SIGNALED == 0 && !q.everyOne {
		return m, false
	}
	*q.id(at) = w.WRID
	lock.StoreRelease32(&q.posted, at+1)
	return m, true
}

// one posts a request by PostOne of the path. It returns false and does nothing if a check, the slots or the path
// refuse it. The caller holds slots.mu.
func (q *SendQueue) one(w *ibv.SendWR) bool {
	if q.capacity == 0 {
		return q.quick.PostOne(w)
	}
	m, ok := q.takeOne(w)
	if ok && !q.quick.PostOne(w) {
		q.undo(m, 0)
		return false
	}
	return ok
}

// oneInline is one for a request with inline data. The path copies the data and panics if its memory is not mapped. The
// caller holds slots.mu; a panic releases it.
func (q *SendQueue) oneInline(w *ibv.SendWR) (ok bool) {
	m, over := mark{posted: q.posted.Load(), signal: q.signal}, false
	defer func() {
		if !over {
			q.undo(m, 0)
			q.mu.Unlock()
		}
	}()
	ok = q.one(w)
	over = true
	return ok
}

// Retire frees the slots of completed requests: a completion, successful or not, frees the slot of its request and
// those of all earlier requests. Retire ignores completions of other queues. A [CompletionQueue] that tracks the queue
// retires by itself. If you poll in another way, pass all completions of the queue to Retire, in the order in which
// they were polled, from one goroutine at a time. A failed completion does not identify sends or receives, so the
// wr_ids of the queue pair's two queues should differ.
func (q *SendQueue) Retire(wcs []ibv.WC) {
	for i := range wcs {
		q.retireWC(&wcs[i])
	}
}

// retireWC is Retire of one completion, and reports whether it belongs to the queue.
func (q *SendQueue) retireWC(wc *ibv.WC) bool {
	succeeded := wc.Status == ibv.WC_SUCCESS
	if wc.QPNum != q.num || succeeded && !ofSend(wc.Opcode) {
		return false
	}
	return q.retire(wc.WRID, succeeded)
}

// ofSend reports whether a successful completion belongs to a send queue, as those of a provider's own operations do.
func ofSend(op ibv.WCOpcode) bool { return op < ibv.WC_RECV || op > ibv.WC_TM_NO_TAG }
