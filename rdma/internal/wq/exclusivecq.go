package wq

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Exclusive gives a handle of the queue that is for one goroutine, the fastest way to poll. C's own locks keep the queue itself usable
// beside it.
func (q *CompletionQueue) Exclusive() (*ExclusiveCompletionQueue, error) {
	x := &ExclusiveCompletionQueue{q: q}
	var err error
	if x.stack, err = q.polls.newStack(); err != nil {
		return nil, err
	}
	x.poller = runtime.NewPollerOn(x.stack, q.polls.fn, q.polls.object, x.stack != nil)
	x.poller.Unusual = q.pollUnusual(x.stack)
	return x, nil
}

// ExclusiveCompletionQueue is a [CompletionQueue] for the goroutine that uses it first, until that says Release. In another one its
// methods panic with runtime.ErrNotOwner, but only where calls are on a private stack: where Way is not exclusive, or
// runtime.PrivateStacks says no, nothing detects another goroutine; C's own locks are all there is.
type ExclusiveCompletionQueue struct {
	poller runtime.Poller
	exclusive
	leave func() // tells the queue's CQ that the handle is closed; or nil
	q     *CompletionQueue
}

// Way is how the queue is polled.
func (x *ExclusiveCompletionQueue) Way() runtime.Way { return x.q.polls.way }

// Provider is [SendQueue.Provider].
func (x *ExclusiveCompletionQueue) Provider() string { return x.q.Provider() }

// Poll is [CompletionQueue.Poll].
func (x *ExclusiveCompletionQueue) Poll(dst []ibv.WC) (n int, err error) {
	if x.q.tracked.Load() != nil && len(dst) > 0 && !x.closed {
		return x.q.pollTracked(x.stack, dst)
	}
	if n = x.poller.PollOwned(len(dst), unsafe.Pointer(unsafe.SliceData(dst))); uint(n) > uint(len(dst)) {
		return 0, x.failed(n)
	}
	return n, nil
}

func (x *ExclusiveCompletionQueue) failed(result int) error {
	if x.closed {
		return errClosed
	}
	return pollFailed(result)
}

// ReqNotify is [CompletionQueue.ReqNotify].
func (x *ExclusiveCompletionQueue) ReqNotify(solicitedOnly bool) error {
	if x.closed {
		return errClosed
	}
	if x.q.notifies.way != runtime.Exclusive {
		return x.q.ReqNotify(solicitedOnly)
	}
	return x.q.reqNotify(x.stack, solicitedOnly)
}

// Close gives the private stack back. No call may be under way. A second Close does nothing.
func (x *ExclusiveCompletionQueue) Close() error {
	x.closed = true // its stack has no owner any more, so that every poll is unusual
	if x.leave != nil {
		x.leave()
		x.leave = nil
	}
	x.poller.Unusual = func(int, unsafe.Pointer) int { return -1 }
	return x.closeStack()
}
