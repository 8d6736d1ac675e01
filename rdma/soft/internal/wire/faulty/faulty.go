// SPDX-License-Identifier: BSD-2-Clause

// Package faulty is a wire on which things go wrong, over another one, and memory that runs out.
package faulty

import (
	"math/rand/v2"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Faults are what goes wrong. soft.Faults explains them.
type Faults struct {
	Seed                   uint64
	Drop, Duplicate, Delay float64
	Late                   time.Duration
	NotReady               bool
	NoRoute                bool
	FailAllocation         int
}

// Wire loses, delays and repeats messages of the wire below it, and answers some in place of their receiver.
type Wire struct {
	below       wire.Wire
	after       func(time.Duration, func())
	faults      Faults
	random      *rand.Rand
	allocations int
	delayed     map[uint32]transmission // the request of a queue pair that waited last: it is not delayed again
	muted       map[uint32]transmission // the request of a queue pair whose answer is to be lost
	lost        uint64
}

// transmission tells a request from others of the same queue pair.
type transmission struct {
	qp, psn uint32
	life    uint64
}

// Over makes a wire without faults. After lets a function be called after a time, with the lock that the wire is called
// with.
func Over(below wire.Wire, after func(time.Duration, func())) *Wire {
	w := &Wire{below: below, after: after, delayed: map[uint32]transmission{}, muted: map[uint32]transmission{}}
	w.Set(Faults{})
	return w
}

// Under lets another wire be the one below.
func (w *Wire) Under(below wire.Wire) { w.below = below }

// Forget forgets a queue pair that is gone.
func (w *Wire) Forget(qp uint32) {
	delete(w.delayed, qp)
	delete(w.muted, qp)
}

// Known is how many queue pairs the wire knows something of.
func (w *Wire) Known() int { return len(w.delayed) + len(w.muted) }

// Set changes what goes wrong from now on.
func (w *Wire) Set(f Faults) {
	clear(w.delayed)
	clear(w.muted)
	w.faults, w.random, w.allocations = f, rand.New(rand.NewPCG(f.Seed, 0)), 0
}

// Idle says whether all messages go as on the wire below.
func (w *Wire) Idle() bool {
	f := &w.faults
	return f.Drop <= 0 && f.Duplicate <= 0 && f.Delay <= 0 && !f.NotReady && !f.NoRoute
}

// Lost is how many requests of connected queue pairs, or answers to them, were lost.
func (w *Wire) Lost() uint64 { return w.lost }

// Allocates says whether there is memory for another object.
func (w *Wire) Allocates() bool {
	w.allocations++
	return w.allocations != w.faults.FailAllocation
}

func (w *Wire) chance(p float64) bool { return p > 0 && w.random.Float64() < p }

// Send may let a request wait, once, lose it or its answer, or bring it twice.
func (w *Wire) Send(m *message.Request) (*message.Answer, time.Duration) {
	t := transmission{m.SourceQP, m.PSN, m.Life}
	if w.chance(w.faults.Delay) && w.faults.Late > 0 && w.delayed[t.qp] != t {
		w.delayed[t.qp] = t
		return nil, w.faults.Late
	}
	delete(w.muted, t.qp)
	if w.chance(w.faults.Drop) {
		if !m.IsReliable() || !w.chance(0.5) {
			if m.Transport != ibv.QPT_UD {
				w.lost++
			}
			return nil, 0
		}
		w.muted[t.qp] = t
		w.lost++
	}
	a := w.deliver(m)
	if (a == nil || a.Syndrome == message.Ack) && w.chance(w.faults.Duplicate) {
		a = w.deliver(m)
	}
	if a != nil && w.mutes(a) {
		a = nil
	}
	if a != nil && w.below.Packets(&m.To) { // whose sender does not wait in Send
		w.below.Answer(a)
		a = nil
	}
	return a, 0
}

// notReadyTimer is the code of the time that a queue pair is asked to wait which is told that its peer is not ready: 10
// µs.
const notReadyTimer = 1

func (w *Wire) deliver(m *message.Request) *message.Answer {
	if w.faults.NotReady && m.IsReliable() && m.TakesReceive() {
		return &message.Answer{From: m.To, To: m.From, DestQP: m.SourceQP, PSN: m.PSN, Life: m.Life,
			Syndrome: message.NotReady, Timer: notReadyTimer}
	}
	a, _ := w.below.Send(m)
	return a
}

// mutes says whether an answer is one that is to be lost.
func (w *Wire) mutes(a *message.Answer) bool {
	return w.muted[a.DestQP] == transmission{a.DestQP, a.PSN, a.Life}
}

// Answer brings an answer, if it is not one that is to be lost.
func (w *Wire) Answer(a *message.Answer) {
	if !w.mutes(a) {
		w.below.Answer(a)
	}
}

// SendMAD may lose a datagram, bring it twice, or late. It lets hints pass.
func (w *Wire) SendMAD(m *message.MAD) {
	if m.IsHint() {
		w.below.SendMAD(m)
		return
	}
	if w.chance(w.faults.Drop) {
		return
	}
	times := 1
	if w.chance(w.faults.Duplicate) {
		times = 2
	}
	late := w.chance(w.faults.Delay)
	for range times {
		if late {
			kept := m.Clone()
			w.after(w.faults.Late, func() { w.below.SendMAD(kept) })
			continue
		}
		w.below.SendMAD(m)
	}
}

// Routes says whether there is a path.
func (w *Wire) Routes(from, to message.Address) bool {
	return !w.faults.NoRoute && w.below.Routes(from, to)
}

// Packets says what the wire below says.
func (w *Wire) Packets(to *message.Address) bool { return w.below.Packets(to) }
