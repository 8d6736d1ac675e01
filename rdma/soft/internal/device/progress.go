// SPDX-License-Identifier: BSD-2-Clause

package device

import "github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"

// turns is the number of times a goroutine sends packets that others left to it before another goroutine takes over.
const turns = 16

// sendAndUnlock unlocks, then sends the packets of the outer wire. Patient callers wait while many packets are left to
// others. The caller holds Fabric.mu.
func (e *Engine) sendAndUnlock(patient bool) {
	for turn := 0; e.outgoing; turn++ {
		e.outgoing = false
		l, crowded := e.outer.Take()
		e.mu.Unlock()
		switch {
		case l != nil && turn == turns:
			go e.sendOn(l)
			return
		case l != nil:
			l.Flush()
			if !e.outer.IsFilled() {
				return
			}
		case crowded != nil && patient:
			crowded.Rest()
		default:
			return
		}
		e.mu.Lock()
		e.outgoing = true
	}
	e.mu.Unlock()
}

// sendOn sends the packets that Take or Turn returned, and those that others leave. It needs no lock: it holds the
// link's.
func (e *Engine) sendOn(l *roce.Link) {
	l.Flush()
	e.mu.Lock()
	e.outgoing = true
	e.sendAndUnlock(false)
}

// Sent waits until everything written before is sent, including packets left to another sending goroutine. It takes
// Fabric.mu.
func (e *Engine) Sent() {
	if e.polled.Load() == nil {
		return
	}
	e.mu.Lock()
	all := e.outer.Links()
	e.mu.Unlock()
	for _, l := range all {
		l.Await()
		e.mu.Lock()
		l.Turn()
		e.mu.Unlock()
		e.sendOn(l) // others may have left packets since
	}
}

// Filled records that the outer wire has packets to send. The caller holds Fabric.mu.
func (e *Engine) Filled() { e.outgoing = true }

// start makes the engine ready, without a wire. It needs no lock: the engine is not shared yet.
func (e *Engine) start(virtual bool) {
	e.gids, e.moves, e.groups = map[[16]byte]*Port{}, 1, map[[16]byte][]*QP{}
	e.acked.L, e.overran, e.send = &e.mu, e.overrun, e.sendAndUnlock
	e.clock.Init(virtual, e.due)
}

// idle is called by a goroutine without work: it reads the sockets, or advances a virtual clock to the next timer, and
// reports whether there was anything. It needs no lock: it takes it for the rest.
func (e *Engine) idle() bool {
	if w := e.polled.Load(); w != nil && w.Poll() {
		return true
	}
	return e.step()
}
