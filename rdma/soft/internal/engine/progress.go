// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

// turns is the number of times that a goroutine sends packets of others before a new goroutine takes over.
const turns = 16

// sendAndUnlock unlocks, then sends the packets of the outer wire. Patient callers wait while many packets are left to
// others. The caller holds Core.Mu.
func (e *Engine) sendAndUnlock(patient bool) {
	for turn := 0; e.Outgoing; turn++ {
		e.Outgoing = false
		l, crowded := e.Outer.Take()
		e.Mu.Unlock()
		switch {
		case l != nil && turn == turns:
			go e.sendOn(l)
			return
		case l != nil:
			l.Flush()
			if !e.Outer.IsFilled() {
				return
			}
		case crowded != nil && patient:
			crowded.Rest()
		default:
			return
		}
		e.Mu.Lock()
		e.Outgoing = true
	}
	e.Mu.Unlock()
}

// sendOn sends the packets that Take or Turn returned, and those that other goroutines add. The caller holds the link,
// not Core.Mu.
func (e *Engine) sendOn(l *roce.Link) {
	l.Flush()
	e.Mu.Lock()
	e.Outgoing = true
	e.sendAndUnlock(false)
}

// Sent waits until everything written before is sent, including packets left to another sending goroutine. It takes
// Core.Mu.
func (e *Engine) Sent() {
	if e.Polled.Load() == nil {
		return
	}
	e.Mu.Lock()
	all := e.Outer.Links()
	e.Mu.Unlock()
	for _, l := range all {
		l.Await()
		e.Mu.Lock()
		l.Turn()
		e.Mu.Unlock()
		e.sendOn(l) // others may have left packets since
	}
}

// Filled records that the outer wire has packets to send. The caller holds Core.Mu.
func (e *Engine) Filled() { e.Outgoing = true }

// Start initializes the engine, without a wire. It needs no lock, because the engine is not shared yet.
func (e *Engine) Start(virtual bool) {
	// Lives grow across restarts, so that a target recognizes the connections of a restarted initiator as new.
	e.lives = uint64(time.Now().UnixMicro())
	e.GIDs, e.Moves, e.groups = map[[16]byte]*Port{}, 1, map[[16]byte][]*QP{}
	e.Acked.L, e.Overran, e.Send = &e.Mu, e.overrun, e.sendAndUnlock
	e.Clock.Init(virtual, e.Due)
}

// Idle does the work of a goroutine that has none of its own: it reads the sockets, or advances a virtual clock to the
// next timer, and reports whether there was anything to do. It takes Core.Mu.
func (e *Engine) Idle() bool {
	if w := e.Polled.Load(); w != nil && w.Poll() {
		return true
	}
	return e.Step()
}
