package rdma

import (
	"context"
	"errors"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Calls lets any number of goroutines wait, each for its own requests, on any queue pairs that complete in one queue:
//
//	call, err := calls.Begin()
//	batch.Write(call.ID(), address, rkey).SGE(...).Signaled() // and post it
//	wc, err := call.Wait(ctx)
//
// It has no goroutine of its own: one of the waiting goroutines polls for all. Nothing else may poll the queue. A
// [Call] is for one goroutine at a time.
type Calls struct {
	poller *Poller[*Call]
	turn   chan struct{} // holds a token while a goroutine polls

	mu    sync.Mutex
	spare []*Call
	got   []Completed[*Call] // guarded by turn
	other func(ibv.WC)
}

// ErrNoCompletion is what errors.Is finds in the error of a call whose request has no completion of its own: the
// request was not signalled, or its queue pair was moved to RESET or closed before it completed.
var ErrNoCompletion = errors.New("the request ended without a completion: it was not signalled, or its queue pair was reset or closed")

// Call is one request that its goroutine waits for. It ends when Wait returns its completion, or by Cancel. Do not use
// it afterwards.
type Call struct {
	calls *Calls
	id    uint64
	done  chan struct{} // holds a token after wc was set
	wc    ibv.WC
	lost  bool // there will be no completion
}

// NewCalls creates a [Poller] of the queue for a number of calls at once. It calls other, which may be nil, with
// completions that belong to no call, from one goroutine at a time. other must not wait for a call.
func NewCalls(cq *CQ, most int, other func(ibv.WC)) (*Calls, error) {
	c := &Calls{turn: make(chan struct{}, 1), got: make([]Completed[*Call], atOnce), other: other}
	p, err := newPollerOf(cq, most, c.lost)
	if err != nil {
		return nil, err
	}
	c.poller = p
	return c, nil
}

// lost ends a call whose request has no completion.
func (c *Calls) lost(call *Call) {
	call.lost = true
	call.done <- struct{}{}
	c.poller.cq.wake() // the polling goroutine checks its own call
}

// Begin starts a call. Post its request, signalled, with ID as the wr_id. If there are too many calls, it fails with
// ENOMEM.
func (c *Calls) Begin() (*Call, error) {
	call := c.new()
	id, err := c.poller.Ticket(call)
	if err != nil {
		c.recycle(call)
		return nil, err
	}
	call.id = id
	return call, nil
}

func (c *Calls) new() *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.spare); n > 0 {
		call := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return call
	}
	return &Call{calls: c, done: make(chan struct{}, 1)}
}

func (c *Calls) recycle(call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spare = append(c.spare, call)
}

// ID returns the wr_id for the call's request.
func (c *Call) ID() uint64 { return c.id }

// Cancel ends a call whose request was not posted.
func (c *Call) Cancel() {
	if _, ok := c.calls.poller.Cancel(c.id); ok {
		c.calls.recycle(c)
	}
}

// Wait waits for the call's completion; [CompletionErr] says whether it succeeded. If ctx ends, or the queue can no
// longer be polled, Wait returns the error and the call goes on: its memory belongs to the device, and Wait may be
// called again. If a request ends without a completion, its call ends with [ErrNoCompletion].
func (c *Call) Wait(ctx context.Context) (ibv.WC, error) {
	for {
		select {
		case <-c.done:
			wc, lost := c.wc, c.lost
			c.lost = false
			c.calls.recycle(c)
			if lost {
				return ibv.WC{}, &VerbError{Verb: "Wait", Object: c.calls.poller.name, Err: ErrNoCompletion}
			}
			return wc, nil
		default:
		}
		select {
		case <-c.done:
			c.done <- struct{}{} // taken above
		case <-ctx.Done():
			return ibv.WC{}, ctx.Err()
		case c.calls.turn <- struct{}{}:
			err := c.calls.serve(ctx, c)
			<-c.calls.turn
			if err != nil {
				return ibv.WC{}, err
			}
		}
	}
}

// serve polls for all goroutines until a call has its completion.
func (c *Calls) serve(ctx context.Context, own *Call) error {
	for len(own.done) == 0 {
		n, err := c.poller.waitUntil(ctx, c.got, func() bool { return len(own.done) > 0 })
		for i := range n {
			switch got := &c.got[i]; {
			case got.Known:
				got.Value.wc = got.WC
				got.Value.done <- struct{}{}
			case c.other != nil:
				c.other(got.WC)
			}
			c.got[i].Value = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close releases the queue. It fails with [ErrInUse] while a goroutine waits. A second Close does nothing.
func (c *Calls) Close() error { return c.poller.Close() }
