// SPDX-License-Identifier: BSD-2-Clause

// Package faulty implements a wire that injects faults over another wire, and failing allocations.
package faulty

import (
	"math/rand/v2"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
)

// Faults are the faults to inject; see soft.Faults.
type Faults struct {
	Seed                   uint64
	Drop, Duplicate, Delay float64
	Late                   time.Duration
	NotReady               bool
	NoRoute                bool
	FailAllocation         int
}

// Wire loses, delays and repeats messages of the wire below, and answers some itself.
type Wire struct {
	below       wire.Wire
	after       func(time.Duration, func())
	faults      Faults
	random      *rand.Rand
	allocations int
	delayed     map[uint32]transmission // by queue pair: the last delayed request, which is not delayed again
	muted       map[uint32]transmission // by queue pair: the request whose answer is to be lost
	lost        uint64
}

// transmission identifies a request of a queue pair.
type transmission struct {
	qp, psn uint32
	life    uint64
}

// Over returns a wire without faults. after calls a function after a time, with the lock that the wire is called with.
func Over(below wire.Wire, after func(time.Duration, func())) *Wire {
	w := &Wire{below: below, after: after, delayed: map[uint32]transmission{}, muted: map[uint32]transmission{}}
	w.Set(Faults{})
	return w
}

// Under replaces the wire below.
func (w *Wire) Under(below wire.Wire) { w.below = below }

// Forget removes the state of a destroyed queue pair.
func (w *Wire) Forget(qp uint32) {
	delete(w.delayed, qp)
	delete(w.muted, qp)
}

// Known returns the number of entries for queue pairs.
func (w *Wire) Known() int { return len(w.delayed) + len(w.muted) }

// Set replaces the faults.
func (w *Wire) Set(f Faults) {
	clear(w.delayed)
	clear(w.muted)
	w.faults, w.random, w.allocations = f, rand.New(rand.NewPCG(f.Seed, 0)), 0
}

// Idle reports whether messages pass without faults.
func (w *Wire) Idle() bool {
	f := &w.faults
	return f.Drop <= 0 && f.Duplicate <= 0 && f.Delay <= 0 && !f.NotReady && !f.NoRoute
}

// Lost returns the number of lost requests of connected queue pairs and of lost answers.
func (w *Wire) Lost() uint64 { return w.lost }

// Allocates reports whether the allocation of another object succeeds.
func (w *Wire) Allocates() bool {
	w.allocations++
	return w.allocations != w.faults.FailAllocation
}

func (w *Wire) chance(p float64) bool { return p > 0 && w.random.Float64() < p }

// Send may delay a request once, lose it or its answer, or send it twice.
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
	if a != nil && w.below.Packets(&m.To) { // the sender expects it through Answer
		w.below.Answer(a)
		a = nil
	}
	return a, 0
}

// notReadyTimer is the RNR timer code for 10 µs.
const notReadyTimer = 1

func (w *Wire) deliver(m *message.Request) *message.Answer {
	if w.faults.NotReady && m.IsReliable() && m.TakesReceive() {
		return &message.Answer{From: m.To, To: m.From, DestQP: m.SourceQP, PSN: m.PSN, Life: m.Life,
			Syndrome: message.NotReady, Timer: notReadyTimer}
	}
	a, _ := w.below.Send(m)
	return a
}

// mutes reports whether an answer is to be lost.
func (w *Wire) mutes(a *message.Answer) bool {
	return w.muted[a.DestQP] == transmission{a.DestQP, a.PSN, a.Life}
}

// Answer sends an answer unless it is to be lost.
func (w *Wire) Answer(a *message.Answer) {
	if !w.mutes(a) {
		w.below.Answer(a)
	}
}

// SendMAD may lose, repeat or delay a datagram. It lets hints pass.
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

// Routes reports whether there is a path.
func (w *Wire) Routes(from, to message.Address) bool {
	return !w.faults.NoRoute && w.below.Routes(from, to)
}

// Packets asks the wire below.
func (w *Wire) Packets(to *message.Address) bool { return w.below.Packets(to) }
