// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/yield"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
)

// reactor takes the completions of many streams out of one queue. A goroutine that has to wait in a stream leads if
// nobody else does: it waits for completions and handles those of all streams, until there is something for its own.
// No other goroutine has to be woken for that one. The next of those that wait leads then, or else the pump.
type reactor struct {
	channel *rdma.CompChannel
	cq      *rdma.CQ
	wcs     []ibv.WC // of the goroutine that leads
	keeping keeping  // its thread

	turn     chan struct{} // holds a token while a goroutine leads
	leader   atomic.Pointer[Conn]
	turns    atomic.Uint64 // number of turns that were taken or waited for
	released chan struct{} // holds a token after the turn was given back
	waits    atomic.Pointer[waiting]
	resting  atomic.Int64  // number of threads that sleep until the pump has something for them
	hurry    chan struct{} // holds a token after there was one more
	glances  atomic.Int64  // in a row, while the pump leads

	mu    sync.Mutex // guards what follows
	conns map[uint32]*Conn
	last  uint32 // key that was given
	err   error  // why the queue has failed
	stop  func() // ends the pump, without the lock

	taken int // entries of the queue that streams may need; guarded by streaming.mu
}

// waiting is the outcome of a wait for completions.
type waiting struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// waitsBy is how a reactor waits.
type waitsBy struct {
	busyPoll   time.Duration
	keepThread bool
}

func newReactor(d *rdma.Device, entries int, by waitsBy) (*reactor, error) {
	r := &reactor{
		wcs: make([]ibv.WC, 32), turn: make(chan struct{}, 1), released: make(chan struct{}, 1),
		hurry: make(chan struct{}, 1), conns: map[uint32]*Conn{},
	}
	r.interrupt()
	var err error
	if r.channel, err = d.CreateCompChannel(); err != nil {
		return nil, err
	}
	r.channel.KeepThread(by.keepThread)
	r.keeping = keeping{keep: r.channel.KeepThread, always: by.keepThread}
	if r.cq, err = d.CreateCQ(entries, r.channel, 0); err != nil {
		_ = r.channel.Close()
		return nil, err
	}
	r.cq.SetBusyPoll(by.busyPoll)
	return r, nil
}

// add gives a stream the key of its completions.
func (r *reactor) add(c *Conn) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.last++; ; r.last++ {
		r.last &= protocol.MostKeys
		if _, taken := r.conns[r.last]; !taken {
			break
		}
	}
	r.conns[r.last] = c
	if len(r.conns) == 1 {
		r.startPump()
	}
	return r.last
}

// remove forgets a stream. What is left of its completions is dropped.
func (r *reactor) remove(key uint32) {
	r.mu.Lock()
	delete(r.conns, key)
	stop := r.stop
	if len(r.conns) > 0 {
		stop = func() {}
	}
	r.mu.Unlock()
	stop()
}

func (r *reactor) find(key uint32) *Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns[key]
}

// interrupt ends the wait of the goroutine that leads.
func (r *reactor) interrupt() {
	w := new(waiting)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if old := r.waits.Swap(w); old != nil {
		old.cancel()
	}
}

// lead handles completions once, unless there is nothing to wait for. The caller has the turn; its stream is nil for
// the pump.
func (r *reactor) lead(c *Conn, over func() bool) {
	r.turns.Add(1)
	r.leader.Store(c)
	w := r.waits.Load() // before looking: later events end the wait
	if !over() {
		r.take(w.ctx, c)
	}
	r.leader.Store(nil)
	<-r.turn
	signal(r.released)
}

// pollsAtOnce is how often poll looks before it asks whether it is over, and lets other goroutines run.
const pollsAtOnce = 16

// poll handles completions without sleeping until over says so, unless another goroutine waits for them.
func (r *reactor) poll(over func() bool) bool {
	select {
	case r.turn <- struct{}{}:
	default:
		return false
	}
	r.turns.Add(1)
	for r.failure() == nil && !over() {
		for range pollsAtOnce {
			n, err := r.cq.Poll(r.wcs)
			if r.handOut(r.wcs[:n]); n > 0 || err != nil {
				break
			}
		}
		yield.Here()
	}
	<-r.turn
	signal(r.released)
	return true
}

// take waits for completions and handles them. c is the stream that leads, or nil.
func (r *reactor) take(ctx context.Context, c *Conn) {
	if c != nil {
		r.keeping.decide()
	}
	n, err := r.cq.Wait(ctx, r.wcs)
	if c != nil {
		r.keeping.learn(c.key, r.wcs[:n])
	}
	if err != nil && ctx.Err() == nil {
		r.fail(err)
	}
	r.handOut(r.wcs[:n])
}

// handOut gives completions to their streams.
func (r *reactor) handOut(all []ibv.WC) {
	for len(all) > 0 {
		key, some := protocol.KeyOf(all[0].WRID), 1
		for some < len(all) && protocol.KeyOf(all[some].WRID) == key {
			some++
		}
		if c := r.find(key); c != nil {
			c.handle(all[:some])
		}
		all = all[some:]
	}
}

// fail ends all streams, because their queue has failed.
func (r *reactor) fail(err error) {
	r.mu.Lock()
	r.err = err
	var all []*Conn
	for _, c := range r.conns {
		all = append(all, c)
	}
	r.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		c.fail(err)
		c.mu.Unlock()
	}
}

// failure is why the queue has failed, or nil.
func (r *reactor) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// nudge has what somebody else took out of the queue handled, as a drain does.
func (r *reactor) nudge() {
	select {
	case r.turn <- struct{}{}:
		r.lead(nil, func() bool {
			for n, err := r.cq.Poll(r.wcs); n > 0 && err == nil; n, err = r.cq.Poll(r.wcs) {
				r.handOut(r.wcs[:n])
			}
			return true
		})
	default:
		r.interrupt() // the next one that leads finds it
	}
}

// pumpAfter is the time without handled completions after which the pump handles them. It checks as often, which wakes
// a thread.
const pumpAfter = 10 * time.Millisecond

// startPump starts the pump of the first stream. The caller holds mu.
func (r *reactor) startPump() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	r.stop = func() {
		cancel()
		r.interrupt()
		<-ended
	}
	go func() {
		defer close(ended)
		r.pump(ctx)
	}()
	signal(r.released)
}

// patience is how many glances in a row the pump takes for those of a program that will sleep.
const patience = 16

// glance handles what there is, for a program that asks again and again. The pump lets go for it.
func (r *reactor) glance() {
	select {
	case r.turn <- struct{}{}:
		r.lead(nil, func() bool {
			for n, err := r.cq.Poll(r.wcs); n > 0 && err == nil; n, err = r.cq.Poll(r.wcs) {
				r.handOut(r.wcs[:n])
			}
			return true
		})
	default:
		if r.glances.Add(1) == patience {
			r.turns.Add(1)
			r.interrupt()
		}
	}
}

// rest has the pump handle completions at once, as long as a thread rests.
func (r *reactor) rest(now bool) {
	if !now {
		r.resting.Add(-1)
		return
	}
	r.glances.Store(0)
	r.resting.Add(1)
	signal(r.hurry)
}

// mayRest reports whether the pump leaves it to others to handle completions, as long as they do.
func (r *reactor) mayRest() bool { return r.resting.Load() == 0 || r.glances.Load() >= patience }

// pump handles completions while nobody reads or writes.
func (r *reactor) pump(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	over := func() bool { return ctx.Err() != nil || r.failure() != nil }
	for {
		select {
		case <-r.released:
		case <-ctx.Done():
			return
		}
		for before := r.turns.Load() - 1; before != r.turns.Load() && r.mayRest(); {
			before = r.turns.Load()
			timer.Reset(pumpAfter)
			select {
			case <-timer.C:
			case <-r.hurry:
			case <-ctx.Done():
				return
			}
		}
		r.glances.Store(0)
		for alone := true; alone && !over(); {
			own := r.turns.Load() + 1
			select {
			case r.turn <- struct{}{}:
				r.lead(nil, over)
				alone = r.turns.Load() == own
			default: // the goroutine that has it will give it back
				alone = false
			}
		}
		if over() {
			return
		}
	}
}
