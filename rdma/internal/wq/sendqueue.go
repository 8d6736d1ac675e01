// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// SendQueue posts to the send queue of a queue pair. Any number of goroutines may use it at once, each with its own
// batch.
//
// Man: ibv_post_send(3)
type SendQueue struct {
	queue
	programs runtime.Poster
}

// NewSendQueue is the send queue of a queue pair, which has to outlive it. The slot is read now: providers fill in the
// functions of a context when they open it, and never change them.
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

// limit changes what the checks know of the queue pair, if change says so. An exclusive handle reads them meanwhile.
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

// explain says why a list is not posted: because of a rule, or because there are no slots for it.
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

// retireWC is Retire of one completion, and says whether it was of the queue.
func (q *SendQueue) retireWC(wc *ibv.WC) bool {
	succeeded := wc.Status == ibv.WC_SUCCESS
	if wc.QPNum != q.num || succeeded && !ofSend(wc.Opcode) {
		return false
	}
	return q.retire(wc.WRID, succeeded)
}

// Exclusive gives a handle of the queue that is for one goroutine, the fastest way to post. The queue itself must not
// be posted to until the handle is closed; a checked one refuses.
func (q *SendQueue) Exclusive() (*ExclusiveSendQueue, error) {
	x := &ExclusiveSendQueue{send: q}
	if err := x.lend(&q.queue); err != nil {
		return nil, err
	}
	direct := x.stack() != nil && q.capacity == 0 && program.Function() != 0
	x.programs.Bind(program.Function(), q.object, direct, (*ownPrograms)(x))
	x.other = &x.programs.Stack
	return x, nil
}

// ExclusiveSendQueue is a [SendQueue] for the goroutine that uses it first, until that says Release. In another one its
// methods panic with runtime.ErrNotOwner, but only where calls are on a private stack: where Way is not exclusive, or
// runtime.PrivateStacks says no, nothing detects another goroutine, and what it does is a data race.
type ExclusiveSendQueue struct {
	handle
	send     *SendQueue
	programs runtime.Poster
}

// Post is [SendQueue.Post].
func (x *ExclusiveSendQueue) Post(b *SendBatch) (posted int, err error) {
	err = x.poster.PostOwned(&b.chain)
	return b.posted, err
}

// PostRange is [SendQueue.PostRange].
func (x *ExclusiveSendQueue) PostRange(b *SendBatch, from, to int) (posted int, err error) {
	return x.post(&b.batch, from, to)
}

// Retire is [SendQueue.Retire]; any goroutine may call it.
func (x *ExclusiveSendQueue) Retire(wcs []ibv.WC) { x.send.Retire(wcs) }

// ofSend says whether a successful completion is of a send queue: those of the provider's own operations are, too.
func ofSend(op ibv.WCOpcode) bool { return op < ibv.WC_RECV || op > ibv.WC_TM_NO_TAG }
