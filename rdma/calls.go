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

// Calls lets any number of goroutines wait for their own requests, on any queue pairs that share a completion queue:
//
//	call, err := calls.Begin()
//	batch.Write(call.ID(), address, rkey).SGE(...).Signaled() // and post it
//	wc, err := call.Wait(ctx)
//
// Calls starts no goroutines: one of the waiting goroutines polls for all of them. While Calls is open, [CQ.Poll] and
// the waits of the CQ return an error. Only one goroutine at a time may wait for a [Call].
type Calls struct {
	poller *Poller[*callSlot]
	turn   chan struct{} // holds a token while a goroutine polls

	mu    sync.Mutex // guards spare and the slots
	spare []*callSlot
	got   []Completed[*callSlot] // guarded by turn
	other func(ibv.WC)

	settling  atomic.Bool          // Close is waiting for the turn
	abandoned map[uint64]*callSlot // by id: calls without a waiter whose requests may be outstanding
	waits     sync.WaitGroup       // of goroutines for abandoned calls
	over      bool                 // Close has begun, and no more calls can be abandoned
}

// ErrNoCompletion matches, with errors.Is, the error of a call whose request has no completion: the request was not
// signalled, or its queue pair was moved to RESET or closed before it completed.
var ErrNoCompletion = errors.New("the request ended without a completion: it was not signalled, or its queue pair " +
	"was reset or closed")

// Call is a request that a goroutine waits for. It ends when Wait returns its completion, or by Cancel. Use Abandon to
// stop waiting. Copies refer to the same call. The zero value is a call that has ended.
type Call struct {
	calls *Calls
	slot  *callSlot
	id    uint64
}

// callSlot is the shared state of a call. It is reused by later calls unless the call is cancelled; a waiter of an
// ended call finds another id in it.
type callSlot struct {
	done chan struct{} // holds a token if the state may have changed

	id    uint64 // of the call that uses the slot, or 0
	ended bool
	wc    ibv.WC
	lost  bool // the call ended without a completion
}

// NewCalls creates a [Poller] of cq for up to most concurrent calls. It passes completions that do not belong to a call
// to other, which may be nil, from one goroutine at a time. other must not wait for a call or call Close.
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

// String returns a name with the completion queue: "calls of CQ 3 on mlx5_0".
func (c *Calls) String() string {
	if c.poller == nil {
		return new(object).String()
	}
	return c.poller.String()
}

// LogValue returns String for package log/slog.
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

// look wakes the goroutine that waits for the slot.
func (s *callSlot) look() {
	select {
	case s.done <- struct{}{}:
	default:
	}
}

// Begin starts a call. Post its request with [Call.ID] as the wr_id, signalled. If there are too many calls, Begin
// returns ENOMEM.
func (c *Calls) Begin() (Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s *callSlot
	if n := len(c.spare); n > 0 {
		s = c.spare[n-1]
		c.spare = c.spare[:n-1]
		select {
		case <-s.done: // of the previous call
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

// free releases the slot of a call that has ended and wakes remaining waiters. The caller holds mu.
func (s *callSlot) free() {
	s.id, s.ended = 0, false
	s.look()
}

// ID returns the wr_id to post the call's request with.
func (c Call) ID() uint64 { return c.id }

// Cancel ends a call whose request was not posted.
func (c Call) Cancel() {
	if c.calls == nil {
		return
	}
	if _, ok := c.calls.poller.Cancel(c.id); ok {
		c.calls.mu.Lock()
		c.slot.free() // not reused: the next call could consume the wake-up of a waiter
		c.calls.mu.Unlock()
		if len(c.calls.turn) > 0 {
			c.calls.poller.cq.wake() // the polling goroutine may be waiting for this call
		}
	}
}

// Abandon stops waiting for the call, for example after a context was cancelled. The request's memory belongs to the
// device until the request completes or its queue pair is closed. Then release is called in a new goroutine, to free or
// reuse the memory. If the call has already ended, that happens at once.
//
// Calls.Close fails until then.
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

// Wait blocks until the call completes and returns the completion; [CompletionErr] returns the error of a failed one.
// If ctx ends or polling fails, Wait returns that error and the call continues: its memory belongs to the device. Then
// wait again, or call Abandon. If the request ends without a completion, Wait returns [ErrNoCompletion]. Waiting for a
// call that has ended returns [ErrClosed].
func (c Call) Wait(ctx context.Context) (ibv.WC, error) {
	if c.calls == nil {
		return ibv.WC{}, &VerbError{Verb: "Wait", Object: "a call", Errno: syscall.EINVAL,
			Reason: "Begin did not create it", Err: ErrClosed}
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

// outlive blocks until an abandoned call has ended.
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
				<-c.slot.done // polling failed: closing the queue pair ends the call
			}
		}
	}
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	delete(c.calls.abandoned, c.id)
}

// result reports whether the call has ended. If so, it returns the outcome and frees the slot.
func (c Call) result() (wc ibv.WC, over bool, err error) {
	s := c.slot
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	switch {
	case s.id != c.id:
		s.look() // the token may belong to another goroutine
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

// serve polls for all goroutines until the state of own may have changed or Close waits for the turn.
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

// dispatch passes completions to their calls. The caller has the turn.
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

// Close releases the queue. It fails with [ErrInUse] while a goroutine waits or an abandoned call is outstanding. A
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

// settle ends abandoned calls that have completed. It fails if some have not.
func (c *Calls) settle() error {
	c.mu.Lock()
	n := len(c.abandoned)
	c.mu.Unlock()
	if n > 0 {
		c.settling.Store(true)
		c.poller.cq.wake()
		c.turn <- struct{}{} // the polling goroutine has dispatched its completions
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
			Reason: fmt.Sprintf("%d abandoned calls are outstanding: close or drain their queue pairs first", n)}
	}
	c.over = true
	return nil
}
