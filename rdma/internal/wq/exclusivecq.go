// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
)

// Exclusive gives a handle of the queue that is for one goroutine, the fastest way to poll. C's own locks keep the
// queue itself usable beside it.
func (q *CompletionQueue) Exclusive() (*ExclusiveCompletionQueue, error) {
	x := &ExclusiveCompletionQueue{q: q, path: q.path, arm: q.arm}
	exclusive := inC(q.path) && q.polls.way == runtime.Exclusive
	x.poller.Bind(q.polls.fn, uintptr(unsafe.Pointer(q.c)), exclusive, x.pollUnusual)
	if exclusive {
		if _, err := runtime.NewStack(); err != nil { // nor will the poller's own have memory
			return nil, err
		}
		x.stack = &x.poller.Stack
		x.path = provider.On(q.polls.fn, x.stack)
		if inC(q.arm) && q.arms.way == runtime.Exclusive {
			x.arm = provider.On(q.arms.fn, x.stack)
		}
	}
	return x, nil
}

// ExclusiveCompletionQueue is a [CompletionQueue] for the goroutine that uses it first, until that says Release. In
// another one its methods panic with runtime.ErrNotOwner, but only where calls are on a private stack: where Way is not
// exclusive, or runtime.PrivateStacks says no, nothing detects another goroutine; C's own locks are all there is.
type ExclusiveCompletionQueue struct {
	poller runtime.Poller
	stack  *runtime.Stack // nil: the provider is not called on a private stack
	path   Path
	arm    Path
	closed bool
	leave  func() // tells the queue's CQ that the handle is closed; or nil
	q      *CompletionQueue
}

// Way is how the queue is polled.
func (x *ExclusiveCompletionQueue) Way() runtime.Way { return x.q.polls.way }

// Provider is [SendQueue.Provider].
func (x *ExclusiveCompletionQueue) Provider() string { return x.q.Provider() }

// Poll is [CompletionQueue.Poll].
func (x *ExclusiveCompletionQueue) Poll(dst []ibv.WC) (n int, err error) {
	if x.q.tracks.Load() && len(dst) > 0 && !x.closed {
		return x.q.poll(x.path, dst, 1)
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
	return pollFailed(x.path, x.q.c, result)
}

// pollUnusual polls by the handle's path, for its Poller.
func (x *ExclusiveCompletionQueue) pollUnusual(n int, wcs unsafe.Pointer) int {
	if x.closed {
		return -1
	}
	return int(x.path.Poll(x.q.c, unsafe.Slice((*ibv.WC)(wcs), n)))
}

// ReqNotify is [CompletionQueue.ReqNotify].
func (x *ExclusiveCompletionQueue) ReqNotify(solicitedOnly bool) error {
	if x.closed {
		return errClosed
	}
	return x.q.reqNotify(x.arm, solicitedOnly)
}

// Release lets another goroutine own the handle. Only the owner may say so.
func (x *ExclusiveCompletionQueue) Release() {
	if x.stack != nil {
		x.stack.Release()
	}
}

// Close ends the use of the handle. No call may be under way. A second Close does nothing.
func (x *ExclusiveCompletionQueue) Close() error {
	x.closed = true // its stack has no owner any more, so that the Poller polls nothing
	if x.leave != nil {
		x.leave()
		x.leave = nil
	}
	return x.poller.Stack.Close()
}
