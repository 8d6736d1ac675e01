package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// CompletionQueue polls a completion queue. Any number of goroutines may use it at once.
//
// Man: ibv_poll_cq(3), ibv_req_notify_cq(3)
type CompletionQueue struct {
	poll, notify slot
}

// NewCompletionQueue is a completion queue, which has to outlive it. Of the options, Way and Providers count.
func NewCompletionQueue(cq *ibv.CQ, o QueueOptions) (*CompletionQueue, error) {
	ops, object := &cq.Context.Deref().Ops, uintptr(unsafe.Pointer(cq))
	poll, err := newSlot(uintptr(ops.PollCQ), object, Poll, "ibv_poll_cq", o.call())
	if err != nil {
		return nil, err
	}
	notify, err := newSlot(uintptr(ops.ReqNotifyCQ), object, ReqNotify, "ibv_req_notify_cq", o.call())
	return &CompletionQueue{poll, notify}, err
}

// Way is how the queue is polled.
func (q *CompletionQueue) Way() runtime.Way { return q.poll.shared() }

// Provider is the name of the provider that the queue's code belongs to.
func (q *CompletionQueue) Provider() string { return q.poll.provider }

// Poll takes up to len(dst) completions out of the queue. dst is the caller's, and on the heap.
func (q *CompletionQueue) Poll(dst []ibv.WC) (n int, err error) {
	if len(dst) == 0 {
		return 0, nil
	}
	r := q.poll.shared().Call3(q.poll.fn, q.poll.object, uintptr(len(dst)), uintptr(unsafe.Pointer(&dst[0])))
	if r < 0 {
		return 0, &runtime.CallError{Function: "ibv_poll_cq"}
	}
	return int(r), nil
}

// ReqNotify asks for one event, for the next completion or only for a solicited one or an error. Poll again afterwards: what was there
// before makes no event.
func (q *CompletionQueue) ReqNotify(solicitedOnly bool) error { return nil }

// Exclusive gives a handle for one goroutine.
func (q *CompletionQueue) Exclusive() (*ExclusiveCompletionQueue, error) {
	s, err := runtime.NewStack()
	return &ExclusiveCompletionQueue{q, s}, err
}

// ExclusiveCompletionQueue is a [CompletionQueue] for one goroutine.
type ExclusiveCompletionQueue struct {
	q     *CompletionQueue
	stack *runtime.Stack
}

// Poll is [CompletionQueue.Poll].
func (x *ExclusiveCompletionQueue) Poll(dst []ibv.WC) (n int, err error) { return x.q.Poll(dst) }

// ReqNotify is [CompletionQueue.ReqNotify].
func (x *ExclusiveCompletionQueue) ReqNotify(solicitedOnly bool) error {
	return x.q.ReqNotify(solicitedOnly)
}

// Release lets another goroutine own the handle. Only the owner may say so.
func (x *ExclusiveCompletionQueue) Release() { x.stack.Release() }

// Close gives the queue back. A second Close does nothing.
func (x *ExclusiveCompletionQueue) Close() error { return x.stack.Close() }
