// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Poller polls one completion queue for many queue pairs and goroutines. A ticket associates a request's wr_id with a
// value of type T; the request's completion is returned with that value. The wr_id alone identifies the request: other
// fields of a failed completion may be invalid, and the number of a closed queue pair may be reused before its last
// completions are polled.
//
// A Poller is safe for concurrent use. Ticket, Poll and Wait do not allocate. While the Poller is open, [CQ.Poll] and
// the waits of the CQ return an error.
//
// See [Calls] for goroutines that each wait for their own requests.
type Poller[T any] struct {
	object
	cq *CQ

	mu       sync.Mutex
	slab     []ticket[T]
	free     uint32 // index of the first free ticket, or noTicket
	inUse    int    // number of tickets in use
	busy     int    // polls and waits in progress
	isClosed bool
	spare    []*[pollSize]ibv.WC // unused buffers of polls
}

const (
	pollSize = 32         // completions per poll
	newCalls = "NewCalls" // verb of the Poller of a Calls
	noTicket = ^uint32(0) // no index
)

// ticket is an entry of the slab. Its wr_id consists of the index and a generation, so that the wr_id of a released
// ticket is invalid.
type ticket[T any] struct {
	value      T
	generation uint32
	next       uint32 // free ticket
	taken      bool
}

// Completed is a completion with the value of its request's ticket.
type Completed[T any] struct {
	ibv.WC
	Value T
	// Known reports whether wr_id belongs to a ticket. If not, Value is zero: the request was posted with another
	// wr_id, its ticket was cancelled, or it completed before.
	Known bool
}

// NewPoller creates a poller. tickets is the maximum number of outstanding requests of all queues that complete in cq.
// A completion queue has at most one Poller, which must be closed first.
func NewPoller[T any](cq *CQ, tickets int) (*Poller[T], error) {
	return newPollerOf(cq, tickets, "NewPoller", func(T) {})
}

// newPollerOf implements NewPoller and NewCalls. It calls lost with the values of tickets that are released without a
// completion, while the queue is locked.
func newPollerOf[T any](cq *CQ, tickets int, verb string, lost func(T)) (*Poller[T], error) {
	if cq == nil {
		return nil, isNil(verb, "", "completion queue")
	}
	if tickets < 1 || tickets > 1<<30 {
		return nil, invalid(verb, cq.name, "%d tickets; the number must be from 1 to %d", tickets, 1<<30)
	}
	if err := cq.use(verb); err != nil {
		return nil, err
	}
	defer cq.done()
	calls := verb == newCalls
	refusing := noCompletionQueue(cq.consumed("ibv_poll_cq", calls))
	if !cq.users.CompareAndSwap(cq.queue, refusing) {
		has := consumer(cq.calls.Load())
		return nil, &VerbError{Verb: verb, Object: cq.name, Errno: syscall.EBUSY,
			Reason: "the queue already has " + has + ", which receives all completions", Err: ErrInUse}
	}
	cq.calls.Store(calls)
	p := &Poller[T]{cq: cq, slab: make([]ticket[T], tickets)}
	for i := range p.slab {
		p.slab[i] = ticket[T]{generation: 1, next: uint32(i) + 1}
	}
	p.slab[tickets-1].next = noTicket
	name := "a poller of "
	if verb == newCalls {
		name = "calls of "
	}
	p.begin(name+cq.name, func() error {
		if err := p.leave(); err != nil {
			return err
		}
		cq.queue.observeAll(nil)
		cq.users.Store(cq.queue)
		return nil
	}, &cq.object)
	cq.queue.observeAll(func(id uint64) {
		if value, ok := p.Cancel(id); ok {
			lost(value)
		}
	})
	return p, nil
}

// CQ returns the completion queue.
func (p *Poller[T]) CQ() *CQ { return p.cq }

// Out returns the number of tickets in use.
func (p *Poller[T]) Out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse
}

// Ticket returns a wr_id for one request. The ticket is released when the request's completion is polled. The ticket of
// an unsignaled request is released by the next completion of the same queue. Tickets of requests without a completion
// are released when the queue pair moves to RESET or closes, or by Cancel. Only Cancel releases those of requests on an
// unchecked queue, and of receives left in a shared receive queue when it is closed. If all tickets are in use, Ticket
// returns ENOMEM without blocking.
func (p *Poller[T]) Ticket(value T) (id uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return 0, p.closed("Ticket")
	}
	i := p.free
	if i == noTicket {
		return 0, &VerbError{Verb: "Ticket", Object: p.cq.name, Errno: syscall.ENOMEM,
			Reason: fmt.Sprintf("all %d tickets are in use", len(p.slab))}
	}
	t := &p.slab[i]
	p.free = t.next
	t.value, t.taken = value, true
	p.inUse++
	return uint64(t.generation)<<32 | uint64(i), nil
}

// Cancel releases the ticket of a request that was not posted, returns its value and reports whether it was in use.
func (p *Poller[T]) Cancel(id uint64) (value T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(id)
}

// take releases a ticket. The caller holds mu.
func (p *Poller[T]) take(id uint64) (value T, ok bool) {
	i := uint32(id)
	if uint64(i) >= uint64(len(p.slab)) {
		return value, false
	}
	t := &p.slab[i]
	if !t.taken || t.generation != uint32(id>>32) {
		return value, false
	}
	value = t.value
	var zero T
	t.value, t.taken, t.next = zero, false, p.free
	t.generation++
	p.free = i
	p.inUse--
	return value, true
}

// Poll stores up to len(dst) completions, at most 32, and returns their number, which may be 0. It does not block.
func (p *Poller[T]) Poll(dst []Completed[T]) (n int, err error) {
	return p.poll(dst, p.cq.queue.Poll)
}

// Wait blocks until there is at least one completion; see [CQ.Wait]. If the queue has no completion channel, it polls
// continuously like [CQ.WaitBusy].
func (p *Poller[T]) Wait(ctx context.Context, dst []Completed[T]) (n int, err error) {
	return p.waitUntil(ctx, dst, never)
}

// All iterates over completions with the values of their tickets, like [CQ.All]. It waits for the next completion until
// ctx ends.
func (p *Poller[T]) All(ctx context.Context) iter.Seq2[Completed[T], error] {
	one := make([]Completed[T], 1)
	return each(func() (Completed[T], error) {
		if n, err := p.Wait(ctx, one); n == 0 {
			return Completed[T]{}, err
		}
		return one[0], nil
	})
}

// waitUntil is Wait that also returns when over reports true. It calls over each time the queue is woken.
func (p *Poller[T]) waitUntil(ctx context.Context, dst []Completed[T], over func() bool) (n int, err error) {
	if err := p.cq.roomIn("Wait", len(dst)); err != nil {
		return 0, err
	}
	if n, err = p.Poll(dst); n > 0 || err != nil {
		return n, err
	}
	return p.poll(dst, func(wcs []ibv.WC) (int, error) {
		return p.cq.waitFor(ctx, into{wcs: wcs}, over)
	})
}

func (p *Poller[T]) poll(dst []Completed[T], poll func([]ibv.WC) (int, error)) (n int, err error) {
	to := p.borrow()
	if to == nil {
		return 0, p.closed("Poll")
	}
	n, err = poll(to[:min(len(to), len(dst))])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	for i := range n {
		c := &dst[i]
		c.WC = to[i]
		c.Value, c.Known = p.take(c.WRID)
	}
	p.spare = append(p.spare, to)
	return n, err
}

// borrow begins a poll and returns a buffer for it, or nil if the poller is closed.
func (p *Poller[T]) borrow() *[pollSize]ibv.WC {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return nil
	}
	p.busy++
	if n := len(p.spare); n > 0 {
		to := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return to
	}
	return new([pollSize]ibv.WC)
}

func (p *Poller[T]) closed(verb string) error {
	return &VerbError{Verb: verb, Object: p.name, Errno: syscall.EINVAL, Err: ErrClosed}
}

// leave closes the poller. It fails while a goroutine polls, which could steal completions from the next Poller.
func (p *Poller[T]) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy > 0 {
		return &VerbError{Verb: "Close", Errno: syscall.EBUSY,
			Reason: "a goroutine is polling or waiting; cancel its context first", Err: ErrInUse}
	}
	p.isClosed = true
	return nil
}

// Close releases the queue and invalidates all tickets. It fails with [ErrInUse] while a goroutine polls or waits. A
// second Close does nothing.
func (p *Poller[T]) Close() error { return p.end() }
