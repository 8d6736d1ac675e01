// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// A post reaches the device in these steps:
//
//  1. QP.PostSend calls postSend (usual.go), which does steps 3 to 6 for the common case by itself: a checked queue and
//     one request with one entry. Everything else goes to post (post.go). SendQueue.Post of an unchecked queue
//     without an owner is a runtime.Poster, which calls C at once.
//  2. If the batch was changed since its last post, post ends the chain behind the last request, and refuses copies,
//     closed batches and requests with a datagram's address for a connected queue pair.
//  3. slots.mu is taken. Whoever closes, drains or resizes the queue takes it as well, and sets refusal.
//  4. takeAlike or takeSend compare each request with the rule of its opcode (sendrules.go), write its wr_id into the
//     ring of slots, note whether it is signalled, and count the list as posted (accounting.go). Nothing is counted if
//     one request breaks a rule or finds no slot: explain (check.go) then finds out which, and why.
//  5. The list goes to C's function on the thread's system stack (a plain queue), or by the queue's Path: C through
//     Go's scheduler, a software backend, or a data path in Go such as mlx5's, whose last store is the doorbell.
//  6. If the device refuses a request, those before it are posted. Their slots stay taken, undo gives back the others,
//     and the PostError names the request. If the device does not name the refused request, all slots stay taken.
//  7. slots.mu is released. Polling gives slots back without it: see slots.

// SendQueue posts to the send queue of a queue pair. Post, PostRange, PostProgram and BindMW post; Free and Retire deal
// with slots. Any number of goroutines may use it at once, each with its own batch.
//
// On 64-bit machines a send queue takes 360 bytes, a receive queue 376. A checked one takes 8 bytes and a bit more for
// each of its slots, whose number is rounded up to a power of two. A post uses two cache lines of the queue and one or
// two of its slots.
//
// Man: ibv_post_send(3)
type SendQueue struct {
	queue
	programs runtime.Poster

	_ [16]byte // so that Go aligns it to cache lines
}

// NewSendQueue returns the send queue of a queue pair, which has to outlive it; see [QP.SendQueue] for that of an
// object. It reads the function's slot now: providers set the functions of a context when they open it, and never
// change them.
func NewSendQueue(qp *ibv.QP, o QueueOptions) (*SendQueue, error) {
	if qp == nil || qp.Context == 0 {
		return nil, &runtime.NilError{Function: "ibv_post_send", Argument: "qp"}
	}
	q := new(SendQueue)
	q.qp, q.num = qp, qp.QPNum
	if err := q.init(q, qp.Context.Deref().Ops.PostSend, unsafe.Pointer(qp), provider.PostSend, "ibv_post_send",
		&o); err != nil {
		return nil, err
	}
	q.programs.Bind(program.Function(), q.object, q.callsC() && program.Function() != 0, (*programs)(q))
	q.avoidSetters = provider.HasDefect(q.provider, "sge-list")
	if o.Unchecked {
		return q, nil
	}
	o.knowing(q.provider)
	q.checks, q.checked, q.connected = sendChecksOf(qp.QPType, &o), true, !takesAddresses(qp.QPType)
	return q, q.count(int(o.Cap.MaxSendWR), o.SQSigAll)
}

// limit changes the options of the checks, if change reports that it did.
func (q *SendQueue) limit(change func(*QueueOptions) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.checks != nil {
		o := q.checks.options
		if change(&o) {
			q.checks = sendChecksOf(q.qp.QPType, &o)
		}
	}
}

// limitMessages makes the checks refuse messages of more bytes.
func (q *SendQueue) limitMessages(most uint32) {
	q.limit(func(o *QueueOptions) bool {
		o.MaxMessage = most
		return true
	})
}

// limitReads makes the checks refuse reads and atomic operations if none may be in flight, or accept them again.
func (q *SendQueue) limitReads(atOnce uint8) {
	q.limit(func(o *QueueOptions) bool {
		before := o.noReads
		o.noReads = atOnce == 0
		return o.noReads != before
	})
}

// noSendQueue is in place of the send queue of a queue pair that has none: it refuses every post with an error. It
// needs no lock: nothing is posted yet.
func noSendQueue(qp *ibv.QP, why error) *SendQueue {
	q := new(SendQueue)
	q.qp, q.num, q.kind = qp, qp.QPNum, q
	q.locked, q.refusal = true, why
	return q
}

// Post posts the whole batch in one call. posted counts the requests that the queue has taken: all of them, or with an
// error those before the one that failed. The error is a [*PostError], or says why the queue takes nothing; an empty
// batch is one.
func (q *SendQueue) Post(b *SendBatch) (posted int, err error) {
	err = q.poster.Post(&b.chain)
	return b.posted, err
}

// PostRange posts the requests from one index up to another, exclusive: the rest of a batch after a failure, say. There
// may be none.
func (q *SendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	return q.post(&b.batch, from, to)
}

func (q *SendQueue) sends() bool { return true }

func (q *SendQueue) call(p Path, list, bad uintptr) int32 {
	return p.PostSend(q.qp, ibv.Ptr[ibv.SendWR](list).Deref(), ibv.Ptr[ibv.Ptr[ibv.SendWR]](bad).Deref())
}

// take checks a list and takes slots for it.
func (q *SendQueue) take(b *batch, from, to int) (m mark, ok bool) {
	return q.takeList(sends(b)[from:to])
}

func (q *SendQueue) takeList(wrs []ibv.SendWR) (m mark, ok bool) {
	if !q.checks.inState(q.qp) {
		return m, false
	}
	return q.takeSend(wrs, q.checks)
}

// sends is the work requests of a batch of sends.
func sends(b *batch) []ibv.SendWR { return (*SendBatch)(unsafe.Pointer(b)).wrs }

// explain returns the error of a list that breaks a rule, or for which slots are missing.
func (q *SendQueue) explain(b *batch, from, to int) error {
	return q.explainList(sends(b)[from:to], from)
}

func (q *SendQueue) explainList(wrs []ibv.SendWR, from int) *PostError {
	if e := q.checks.refuse(q.qp, wrs, from); e != nil {
		return e
	}
	errno, reason := q.noRoom(len(wrs))
	return q.failure(from, wrs[0].WRID, errno, reason)
}

func (q *SendQueue) failure(index int, id uint64, errno runtime.Errno, reason string) *PostError {
	return &PostError{Verb: "ibv_post_send", QPNum: q.qp.QPNum, QPType: q.qp.QPType, Index: index, WRID: id,
		Errno: errno, Reason: reason}
}

// Retire gives back the slots that completions tell of: of a successful one, those of its work request and of all
// before it; likewise of a failed one. Completions of other queues are passed over. A [CompletionQueue] that tracks the
// queue does this by itself. If you poll in another way, hand over all completions of the queue here, in the order in
// which they were polled: one caller at a time. A failed completion does not tell sends from receives, so wr_ids of the
// queue pair's two queues should differ.
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
