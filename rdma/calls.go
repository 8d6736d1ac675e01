// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Calls lets any number of goroutines wait, each for its own requests, on any queue pairs that complete in one queue:
//
//	call, err := calls.Begin()
//	batch.Write(call.ID(), address, rkey).SGE(...).Signaled() // and post it
//	wc, err := call.Wait(ctx)
//
// Calls starts no goroutine: one of the waiting goroutines polls for all. Nothing else may poll the queue: [CQ.Poll]
// and its waits return an error. One goroutine at a time waits for a [Call].
type Calls struct {
	poller *Poller[*callSlot]
	turn   chan struct{} // holds a token while a goroutine polls

	mu    sync.Mutex // guards spare and the slots
	spare []*callSlot
	got   []Completed[*callSlot] // guarded by turn
	other func(ibv.WC)

	settling  atomic.Bool          // Close wants the turn
	abandoned map[uint64]*callSlot // by id: calls without a waiter, which the device may still execute
	waits     sync.WaitGroup       // of goroutines for abandoned calls
	over      bool                 // closed, or being closed: no call is abandoned any more
}

// ErrNoCompletion matches, with errors.Is, the error of a call whose request has no completion: the request was not
// signalled, or its queue pair was moved to RESET or closed before it completed.
var ErrNoCompletion = errors.New("the request ended without a completion: it was not signalled, or its queue pair " +
	"was reset or closed")

// Call is one request that its goroutine waits for. It ends when Wait returns its completion, or by Cancel; a goroutine
// that waits no longer calls Abandon. Copies are the same call. The zero value is a call that has ended.
type Call struct {
	calls *Calls
	slot  *callSlot
	id    uint64
}

// callSlot is the state of a call that goroutines share. It is reused by one call after another until one is canceled;
// a waiter of a call that has ended finds another id in it.
type callSlot struct {
	done chan struct{} // holds a token if there may be something new to see

	id    uint64 // of the call that has the slot; 0: none
	ended bool
	wc    ibv.WC
	lost  bool // it ended without a completion
}

// NewCalls creates a [Poller] of the queue for a number of calls at once. It calls other, which may be nil, with
// completions that belong to no call, from one goroutine at a time. other must not wait for a call, nor call Close.
func NewCalls(cq *CQ, most int, other func(ibv.WC)) (*Calls, error) {
	c := &Calls{turn: make(chan struct{}, 1), got: make([]Completed[*callSlot], pollSize), other: other,
		abandoned: map[uint64]*callSlot{}}
	p, err := newPollerOf(cq, most, newCalls, c.lost)
	if err != nil {
		return nil, err
	}
	c.poller = p
	return c, nil
}

// String names the calls by their queue: "calls of CQ 3 on mlx5_0".
func (c *Calls) String() string {
	if c.poller == nil {
		return new(object).String()
	}
	return c.poller.String()
}

// LogValue is String, for package log/slog.
func (c *Calls) LogValue() slog.Value { return slog.StringValue(c.String()) }

// lost ends a call whose request has no completion.
func (c *Calls) lost(s *callSlot) {
	c.end(s, nil)
	c.poller.cq.wake() // the polling goroutine checks its own call
}

// end ends the slot's call, without a completion if wc is nil.
func (c *Calls) end(s *callSlot, wc *ibv.WC) {
	c.mu.Lock()
	if s.ended, s.lost = true, wc == nil; wc != nil {
		s.wc = *wc
	}
	c.mu.Unlock()
	s.look()
}

// look wakes a goroutine that waits for the slot.
func (s *callSlot) look() {
	select {
	case s.done <- struct{}{}:
	default:
	}
}

// Begin starts a call. Post its request, signalled, with ID as the wr_id. If there are too many calls, it fails with
// ENOMEM.
func (c *Calls) Begin() (Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s *callSlot
	if n := len(c.spare); n > 0 {
		s = c.spare[n-1]
		c.spare = c.spare[:n-1]
		select {
		case <-s.done: // of the last call
		default:
		}
	} else {
		s = &callSlot{done: make(chan struct{}, 1)}
	}
	id, err := c.poller.Ticket(s)
	if err != nil {
		c.spare = append(c.spare, s)
		return Call{}, err
	}
	s.id, s.ended = id, false
	return Call{c, s, id}, nil
}

// free takes the slot from a call that has ended. Whoever still waits for that call wakes. The caller holds mu.
func (s *callSlot) free() {
	s.id, s.ended = 0, false
	s.look()
}

// ID returns the wr_id for the call's request.
func (c Call) ID() uint64 { return c.id }

// Cancel ends a call whose request was not posted.
func (c Call) Cancel() {
	if c.calls == nil {
		return
	}
	if _, ok := c.calls.poller.Cancel(c.id); ok {
		c.calls.mu.Lock()
		c.slot.free() // for good: the next call would take the wake-up of one who waits
		c.calls.mu.Unlock()
		if len(c.calls.turn) > 0 {
			c.calls.poller.cq.wake() // the polling goroutine may wait for this call
		}
	}
}

// Abandon ends the wait for the call, for example after its context has ended. The memory of its request belongs to the
// device until the request has completed or its queue pair is closed. Then release is called in a new goroutine, so
// that it can free or reuse the memory. If the call has already ended, release is called at once.
//
// Calls cannot be closed before that.
func (c Call) Abandon(release func()) {
	if c.calls == nil || !c.calls.outlives(c) {
		go release()
		return
	}
	go func() {
		c.outlive()
		release()
	}()
}

// Wait waits for the call's completion; [CompletionErr] returns the error of a failed one. If ctx ends, or the queue
// can no longer be polled, Wait returns the error and the call goes on: its memory belongs to the device. Then wait
// again, or call Abandon. If a request ends without a completion, its call ends with [ErrNoCompletion]. Waiting for a
// call that has ended fails with [ErrClosed].
func (c Call) Wait(ctx context.Context) (ibv.WC, error) {
	if c.calls == nil {
		return ibv.WC{}, &VerbError{Verb: "Wait", Object: "a call", Errno: syscall.EINVAL, Reason: "it was never begun",
			Err: ErrClosed}
	}
	for {
		if wc, over, err := c.result(); over {
			return wc, err
		}
		select {
		case <-c.slot.done:
		case <-ctx.Done():
			return ibv.WC{}, ctx.Err()
		case c.calls.turn <- struct{}{}:
			err := c.calls.serve(ctx, c.slot)
			<-c.calls.turn
			if err != nil {
				return ibv.WC{}, err
			}
		}
	}
}

// outlives records that a call is abandoned. It returns false if the call has ended.
func (c *Calls) outlives(call Call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call.slot.id != call.id || c.over {
		return false
	}
	c.abandoned[call.id] = call.slot
	c.waits.Add(1)
	return true
}

// outlive returns when an abandoned call has ended.
func (c Call) outlive() {
	defer c.calls.waits.Done()
	for {
		if _, over, _ := c.result(); over {
			break
		}
		select {
		case <-c.slot.done:
		case c.calls.turn <- struct{}{}:
			err := c.calls.serve(context.Background(), c.slot)
			<-c.calls.turn
			if err != nil {
				<-c.slot.done // the queue cannot be polled: closing the queue pair ends the call
			}
		}
	}
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	delete(c.calls.abandoned, c.id)
}

// result returns how the call ended, if it is over, and frees its slot.
func (c Call) result() (wc ibv.WC, over bool, err error) {
	s := c.slot
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	switch {
	case s.id != c.id:
		s.look() // the token may have been that of another goroutine
		return wc, true, c.failed("the call has ended already", ErrClosed)
	case !s.ended:
		return wc, false, nil
	}
	if s.lost {
		err = c.failed("", ErrNoCompletion)
	} else {
		wc = s.wc
	}
	s.free()
	c.calls.spare = append(c.calls.spare, s)
	return wc, true, err
}

func (c Call) failed(reason string, err error) error {
	return &VerbError{Verb: "Wait", Object: c.calls.poller.name, Reason: reason, Err: err}
}

// serve polls for all goroutines until a slot has something new, or Close wants to.
func (c *Calls) serve(ctx context.Context, own *callSlot) error {
	for len(own.done) == 0 && !c.settling.Load() {
		n, err := c.poller.waitUntil(ctx, c.got, func() bool { return len(own.done) > 0 || c.settling.Load() })
		c.dispatch(c.got[:n])
		if err != nil {
			return err
		}
	}
	return nil
}

// dispatch hands completions to their calls. The caller has the turn.
func (c *Calls) dispatch(all []Completed[*callSlot]) {
	for i := range all {
		switch got := &all[i]; {
		case got.Known:
			c.end(got.Value, &got.WC)
		case c.other != nil:
			c.other(got.WC)
		}
		all[i].Value = nil
	}
}

// Close releases the queue. It fails with [ErrInUse] while a goroutine waits, or the device has an abandoned call. A
// second Close does nothing.
func (c *Calls) Close() error {
	if err := c.settle(); err != nil {
		return err
	}
	c.waits.Wait()
	err := c.poller.Close()
	if err != nil {
		c.mu.Lock()
		c.over = false
		c.mu.Unlock()
	}
	return err
}

// settle ends abandoned calls that have completed, and fails if there are others.
func (c *Calls) settle() error {
	c.mu.Lock()
	n := len(c.abandoned)
	c.mu.Unlock()
	if n > 0 {
		c.settling.Store(true)
		c.poller.cq.wake()
		c.turn <- struct{}{} // the polling goroutine has delivered its completions
		for n, err := c.poller.Poll(c.got); n > 0 && err == nil; n, err = c.poller.Poll(c.got) {
			c.dispatch(c.got[:n])
		}
		c.settling.Store(false)
		<-c.turn
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n = 0
	for id, s := range c.abandoned {
		if s.id == id && !s.ended {
			n++
		}
	}
	if n > 0 {
		return &VerbError{Verb: "Close", Object: c.poller.name, Errno: syscall.EBUSY, Err: ErrInUse,
			Reason: fmt.Sprintf("%d abandoned calls have not completed: close or drain their queue pairs first", n)}
	}
	c.over = true
	return nil
}
