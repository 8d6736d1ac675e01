// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/yield"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// poller receives the completions of many connections from one queue. One waiting goroutine of a connection is the
// leader: it polls and handles the completions of all connections until its own condition is true. Then another waiting
// goroutine becomes the leader, or else the background goroutine. The leader's own completions therefore wake no other
// goroutine.
type poller struct {
	channel *rdma.CompChannel
	cq      *rdma.CQ
	wcs     []ibv.WC // used by the leader
	thread  threadPolicy

	turn     chan struct{} // holds a token while there is a leader
	leader   atomic.Pointer[Conn]
	turns    atomic.Uint64 // number of turns taken or waited for
	released chan struct{} // holds a token after the turn was released
	waits    atomic.Pointer[waiting]
	resting  atomic.Int64  // number of threads that sleep until the background goroutine wakes them
	urgent   chan struct{} // holds a token after resting was incremented
	attempts atomic.Int64  // consecutive calls of tryPoll while the background goroutine leads

	mu    sync.Mutex // guards the fields below
	conns map[uint32]*Conn
	last  uint32 // last assigned key
	err   error  // why the queue has failed
	stop  func() // ends the background goroutine; called without mu

	reserved int // queue entries reserved for streams; guarded by shared.mu
}

// waiting is the context of the leader's wait, which interrupt cancels.
type waiting struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// waitPolicy configures how a poller waits.
type waitPolicy struct {
	busyPoll   time.Duration
	keepThread bool
}

func newPoller(d *rdma.Device, entries int, by waitPolicy) (*poller, error) {
	p := &poller{
		wcs: make([]ibv.WC, 32), turn: make(chan struct{}, 1), released: make(chan struct{}, 1),
		urgent: make(chan struct{}, 1), conns: map[uint32]*Conn{},
	}
	p.interrupt()
	var err error
	if p.channel, err = d.CreateCompChannel(); err != nil {
		return nil, err
	}
	p.channel.KeepThread(by.keepThread)
	p.thread = threadPolicy{keep: p.channel.KeepThread, always: by.keepThread}
	if p.cq, err = d.CreateCQ(entries, p.channel, 0); err != nil {
		_ = p.channel.Close()
		return nil, err
	}
	p.cq.SetBusyPoll(by.busyPoll)
	return p, nil
}

// grow resizes the queue for a number of completions and reports whether it succeeded. Not every device can resize
// queues.
func (p *poller) grow(entries int) bool {
	now := p.cq.Len()
	if entries <= now {
		return true
	}
	return entries <= maxEntries && p.cq.Resize(max(entries, min(2*now+2, maxEntries))) == nil
}

func (p *poller) close() error { return rdma.CloseAll(nil, p.cq, p.channel) }

// add assigns a key to a stream's completions.
func (p *poller) add(c *Conn) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.last++; ; p.last++ {
		p.last &= protocol.MostKeys
		if _, taken := p.conns[p.last]; !taken {
			break
		}
	}
	p.conns[p.last] = c
	if len(p.conns) == 1 {
		p.startBackground()
	}
	return p.last
}

// remove removes a stream. Its remaining completions are dropped.
func (p *poller) remove(key uint32) {
	p.mu.Lock()
	delete(p.conns, key)
	stop := p.stop
	if len(p.conns) > 0 {
		stop = func() {}
	}
	p.mu.Unlock()
	stop()
}

func (p *poller) find(key uint32) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[key]
}

// interrupt ends the leader's wait.
func (p *poller) interrupt() {
	w := new(waiting)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if old := p.waits.Swap(w); old != nil {
		old.cancel()
	}
}

// lead handles completions once, unless over reports true. The caller has the turn. c is nil for the background
// goroutine.
func (p *poller) lead(c *Conn, over func() bool) {
	p.turns.Add(1)
	p.leader.Store(c)
	w := p.waits.Load() // loaded before over is called, so that later events end the wait
	if !over() {
		p.take(w.ctx, c)
	}
	p.leader.Store(nil)
	<-p.turn
	signal(p.released)
}

// pollsAtOnce is the number of polls after which poll checks over and yields.
const pollsAtOnce = 16

// poll handles completions without sleeping until over reports true or another goroutine waits for the turn.
func (p *poller) poll(over func() bool) bool {
	select {
	case p.turn <- struct{}{}:
	default:
		return false
	}
	p.turns.Add(1)
	for p.failure() == nil && !over() {
		for range pollsAtOnce {
			n, err := p.cq.Poll(p.wcs)
			if p.handOut(p.wcs[:n]); n > 0 || err != nil {
				break
			}
		}
		yield.Here()
	}
	<-p.turn
	signal(p.released)
	return true
}

// take waits for completions and handles them. c is the leading stream, or nil.
func (p *poller) take(ctx context.Context, c *Conn) {
	if c != nil {
		p.thread.decide()
	}
	n, err := p.cq.Wait(ctx, p.wcs)
	if c != nil {
		p.thread.learn(c.key, p.wcs[:n])
	}
	if err != nil && ctx.Err() == nil {
		p.fail(err)
	}
	p.handOut(p.wcs[:n])
}

// handOut passes completions to their streams.
func (p *poller) handOut(all []ibv.WC) {
	for len(all) > 0 {
		key, some := protocol.KeyOf(all[0].WRID), 1
		for some < len(all) && protocol.KeyOf(all[some].WRID) == key {
			some++
		}
		if c := p.find(key); c != nil {
			c.handle(all[:some])
		}
		all = all[some:]
	}
}

// fail makes all streams fail because their queue has failed.
func (p *poller) fail(err error) {
	p.mu.Lock()
	p.err = err
	var all []*Conn
	for _, c := range p.conns {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		c.fail(err)
		c.mu.Unlock()
	}
}

// failure returns the error of the failed queue, or nil.
func (p *poller) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// wake handles completions that another consumer of the queue, such as a drain, has put back.
func (p *poller) wake() {
	select {
	case p.turn <- struct{}{}:
		p.lead(nil, func() bool {
			for n, err := p.cq.Poll(p.wcs); n > 0 && err == nil; n, err = p.cq.Poll(p.wcs) {
				p.handOut(p.wcs[:n])
			}
			return true
		})
	default:
		p.interrupt() // the next leader handles them
	}
}

// backgroundAfter is how long completions may be unhandled before the background goroutine handles them. It checks at
// this interval, which wakes a thread.
const backgroundAfter = 10 * time.Millisecond

// startBackground starts the background goroutine for the first connection. The caller holds mu.
func (p *poller) startBackground() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	p.stop = func() {
		cancel()
		p.interrupt()
		<-ended
	}
	go func() {
		defer close(ended)
		p.background(ctx)
	}()
	signal(p.released)
}

// maxAttempts is the number of consecutive calls of tryPoll after which the background goroutine leaves polling to the
// program.
const maxAttempts = 16

// tryPoll handles the available completions. Programs that poll call it.
func (p *poller) tryPoll() {
	select {
	case p.turn <- struct{}{}:
		p.lead(nil, func() bool {
			for n, err := p.cq.Poll(p.wcs); n > 0 && err == nil; n, err = p.cq.Poll(p.wcs) {
				p.handOut(p.wcs[:n])
			}
			return true
		})
	default:
		if p.attempts.Add(1) == maxAttempts {
			p.turns.Add(1)
			p.interrupt()
		}
	}
}

// rest increments (true) or decrements the number of resting threads. While there are any, the background goroutine
// handles completions at once.
func (p *poller) rest(now bool) {
	if !now {
		p.resting.Add(-1)
		return
	}
	p.attempts.Store(0)
	p.resting.Add(1)
	signal(p.urgent)
}

// mayRest reports whether the background goroutine may leave polling to other goroutines while they do it.
func (p *poller) mayRest() bool { return p.resting.Load() == 0 || p.attempts.Load() >= maxAttempts }

// background handles completions when no goroutine reads or writes.
func (p *poller) background(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	over := func() bool { return ctx.Err() != nil || p.failure() != nil }
	for {
		select {
		case <-p.released:
		case <-ctx.Done():
			return
		}
		for before := p.turns.Load() - 1; before != p.turns.Load() && p.mayRest(); {
			before = p.turns.Load()
			timer.Reset(backgroundAfter)
			select {
			case <-timer.C:
			case <-p.urgent:
			case <-ctx.Done():
				return
			}
		}
		p.attempts.Store(0)
		for alone := true; alone && !over(); {
			own := p.turns.Load() + 1
			select {
			case p.turn <- struct{}{}:
				p.lead(nil, over)
				alone = p.turns.Load() == own
			default: // the goroutine that has it releases it
				alone = false
			}
		}
		if over() {
			return
		}
	}
}
