package wq

import (
	"fmt"

	"github.com/goverbs/goverbs/runtime"
)

// exclusive is what handles for one goroutine have in common.
type exclusive struct {
	stack  *runtime.Stack // nil: the provider is not called on a private stack
	closed bool
}

var (
	errExclusive = fmt.Errorf("rdma: an exclusive handle of the queue is %w: post by it, or close it", ErrInUse)
	errClosed    = fmt.Errorf("rdma: the exclusive handle is %w", ErrClosed)
)

// Release lets another goroutine own the handle. Only the owner may say so.
func (x *exclusive) Release() {
	if x.stack != nil {
		x.stack.Release()
	}
}

// giveBack closes the handle of a queue that is posted to, which mu guards and takes requests again.
func (x *exclusive) giveBack(mu *runtime.Lock, refusal *error) error {
	if x.closed {
		return nil
	}
	x.closed = true
	mu.Lock()
	*refusal = nil
	mu.Unlock()
	return x.closeStack()
}

func (x *exclusive) closeStack() error {
	if x.stack == nil {
		return nil
	}
	return x.stack.Close()
}
