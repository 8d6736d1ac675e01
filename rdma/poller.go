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

// Poller polls one completion queue for many queue pairs and goroutines. Post a request under a ticket, which stands
// for a value of the user's; its completion comes with that value. Only the wr_id identifies the request: no other
// field of a failed completion is certain, and another queue pair may have the number of a closed one by the time that
// the last completions are polled.
//
// Any number of goroutines may use a Poller at once. Tickets, polls and waits do not allocate. Nothing else may poll
// the queue: [CQ.Poll] and its waits return an error.
//
// See [Calls] for goroutines that each wait for their own requests.
type Poller[T any] struct {
	object
	cq *CQ

	mu       sync.Mutex
	slab     []ticket[T]
	free     uint32              // index of the first free ticket, or none
	inUse    int                 // number of tickets in use
	busy     int                 // polls and waits under way
	isClosed bool                // it is closed
	spare    []*[pollSize]ibv.WC // C writes here; slices of goroutines that do not poll now
}

const (
	pollSize = 32         // completions that a Poller takes out of its queue at once
	newCalls = "NewCalls" // the verb of a Poller for Calls
	noTicket = ^uint32(0) // the index of no ticket
)

// ticket is an entry of the slab. Its wr_id is the index and a generation, so that the wr_id of a returned ticket is
// invalid.
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
	// Known reports whether wr_id belongs to a ticket. Otherwise Value is zero: the request was posted with another
	// wr_id, its ticket was cancelled, or it had a completion before.
	Known bool
}

// NewPoller creates a poller with a number of tickets: the largest number of outstanding requests, over all queues that
// complete in the completion queue. Close it before the queue. A queue has at most one Poller.
func NewPoller[T any](cq *CQ, tickets int) (*Poller[T], error) {
	return newPollerOf(cq, tickets, "NewPoller", func(T) {})
}

// newPollerOf is NewPoller, also for NewCalls. It calls lost with tickets that return without a completion, while the
// queue is locked.
func newPollerOf[T any](cq *CQ, tickets int, verb string, lost func(T)) (*Poller[T], error) {
	if cq == nil {
		return nil, isNil(verb, "", "completion queue")
	}
	if tickets < 1 || tickets > 1<<30 {
		return nil, invalid(verb, cq.name, "%d tickets; it must be from 1 to %d", tickets, 1<<30)
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
			Reason: "the queue has " + has + " already, which takes all completions", Err: ErrInUse}
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

// CQ returns the queue that is polled.
func (p *Poller[T]) CQ() *CQ { return p.cq }

// Out returns the number of tickets in use.
func (p *Poller[T]) Out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse
}

// Ticket returns a wr_id for one request. The ticket is released when the request's completion is polled; for an
// unsignaled request, by the next completion of the same queue; and for requests without a completion, when the queue
// pair moves to RESET or closes, or by Cancel. Cancel is the only way for requests of an unchecked queue that have no
// completion, and for receives that a shared receive queue still holds when it is closed. If all tickets are in use,
// Ticket fails with ENOMEM; it does not wait.
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

// Cancel releases a ticket whose request was not posted, and reports whether it was in use.
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

// Poll takes up to len(dst) completions, but at most 32 at once, and returns their number, which may be 0. It does not
// block.
func (p *Poller[T]) Poll(dst []Completed[T]) (n int, err error) {
	return p.poll(dst, p.cq.queue.Poll)
}

// Wait polls until there is at least one completion; see [CQ.Wait]. Without a channel it polls all the time, like
// [CQ.WaitBusy].
func (p *Poller[T]) Wait(ctx context.Context, dst []Completed[T]) (n int, err error) {
	return p.waitUntil(ctx, dst, never)
}

// All is [CQ.All] with the values of the tickets: it waits for completions, one after the other, without end.
func (p *Poller[T]) All(ctx context.Context) iter.Seq2[Completed[T], error] {
	one := make([]Completed[T], 1)
	return each(func() (Completed[T], error) {
		if n, err := p.Wait(ctx, one); n == 0 {
			return Completed[T]{}, err
		}
		return one[0], nil
	})
}

// waitUntil is Wait that returns nothing if over is true. It calls over after every wake of the queue.
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

// borrow begins a poll and returns memory that C writes to, or nil if the poller is closed.
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

// leave ends the use of the queue. It fails while a goroutine polls, because its completions would go to the next
// Poller.
func (p *Poller[T]) leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy > 0 {
		return &VerbError{Verb: "Close", Errno: syscall.EBUSY,
			Reason: "somebody polls or waits: end that first, by its context for example", Err: ErrInUse}
	}
	p.isClosed = true
	return nil
}

// Close releases the queue and makes all tickets invalid. It fails with [ErrInUse] while a goroutine polls or waits. A
// second Close does nothing.
func (p *Poller[T]) Close() error { return p.end() }
