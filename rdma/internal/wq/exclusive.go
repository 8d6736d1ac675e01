// SPDX-License-Identifier: BSD-2-Clause

package wq

import (
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

var (
	errExclusive = error(&verberr.VerbError{Errno: verberr.EBUSY, Err: ErrInUse,
		Reason: "an exclusive handle of the queue is open: post by it, or close it"})
	errClosed = closed("exclusive handle")
)

// handle is what exclusive handles of queues that are posted to have in common. Its Poster goes to C at once where the
// queue is neither checked nor counted.
type handle struct {
	poster runtime.Poster
	q      *queue
	path   Path
	other  *runtime.Stack // of another poster of the handle, whose owner is the first one's; or nil
	closed bool
}

// lend makes the handle of a queue, which takes nothing meanwhile.
func (x *handle) lend(q *queue) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refusal != nil {
		return q.refusal
	}
	x.q, x.path = q, q.path
	exclusive := inC(q.path) && q.way == runtime.Exclusive
	x.poster.Bind(q.fn, q.object, exclusive && q.capacity == 0, (*handlePosts)(x))
	if exclusive {
		if _, err := runtime.NewStack(); err != nil { // nor will the poster's own have memory
			return err
		}
		x.path = provider.On(q.fn, &x.poster.Stack)
	}
	q.refuseNow(errExclusive)
	return nil
}

// stack is the private stack of the handle, or nil where the queue is not called on one.
func (x *handle) stack() *runtime.Stack {
	if f, ok := x.path.(*provider.Function); ok {
		return f.Stack()
	}
	return nil
}

// Way is how the queue is called.
func (x *handle) Way() runtime.Way { return x.q.way }

// Provider is [SendQueue.Provider].
func (x *handle) Provider() string { return x.q.provider }

// own makes sure of the owner before anything is counted that a refused call would not undo.
func (x *handle) own() error {
	if x.closed {
		return errClosed
	}
	if stack := x.stack(); stack != nil {
		if stack.Own(); x.other != nil {
			x.other.Own()
		}
	}
	return nil
}

// handlePosts is a handle as its Poster knows it.
type handlePosts handle

// PostUnusual posts a whole batch.
func (p *handlePosts) PostUnusual(c *runtime.Chain) error {
	x, b := (*handle)(p), batchOf(c)
	posted, err := x.post(b, 0, c.Len)
	b.took(posted)
	return x.q.orEmpty(b, err)
}

// PostFailed makes an error of what C answered for a whole batch.
func (p *handlePosts) PostFailed(c *runtime.Chain, result int32) error {
	return p.q.wholeFailed(c, result)
}

// post posts the requests from one index up to another, exclusive. It needs no lock: the queue takes nothing but by the
// handle.
func (x *handle) post(b *batch, from, to int) (posted int, err error) {
	if !b.postable(from, to) {
		return 0, x.q.unfit(b.Err())
	}
	if err := x.own(); err != nil {
		return 0, err
	}
	if err := x.q.misplaced(b, from, to); err != nil {
		return 0, err
	}
	b.endAt(from, to)
	return x.q.postBy(x.path, b, from, to)
}

// Release lets another goroutine own the handle. Only the owner may say so.
func (x *handle) Release() {
	if stack := x.stack(); stack != nil {
		if stack.Release(); x.other != nil {
			x.other.Release()
		}
	}
}

// Close gives the queue back. No call may be under way. A second Close does nothing.
func (x *handle) Close() error {
	if x.closed {
		return nil
	}
	x.closed = true
	x.q.mu.Lock()
	x.q.refuseNow(nil)
	x.q.mu.Unlock()
	if x.other != nil {
		x.other.Close()
	}
	if stack := x.stack(); stack != nil {
		return stack.Close()
	}
	return nil
}
