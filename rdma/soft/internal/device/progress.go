// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

// again makes a guard retry carefully after a panic. Other panics, and too many of them, propagate. The caller holds
// Fabric.mu.
func (f *Fabric) again(panicked any) {
	gone := f.fault(panicked)
	if f.tries == attempts {
		f.calm()
		panic(gone)
	}
	f.careful = true
	f.tries++
}

// unlockPosted is unlock for those who post: they wait where many packets wait to be sent.
func (f *Fabric) unlockPosted() {
	if len(f.ready)+len(f.overruns) > 0 || f.outgoing {
		f.workAndUnlock(true)
		return
	}
	f.mu.Unlock()
}

// workAndUnlock unlocks also where work panics. The caller holds Fabric.mu.
func (f *Fabric) workAndUnlock(patient bool) {
	defer f.sendAndUnlock(patient)
	f.work()
}

// turns is the number of times a goroutine sends packets that others left to it before another goroutine takes over.
const turns = 16

// sendAndUnlock unlocks, then sends the packets of the outer wire. Patient callers wait while many packets are left to
// others. The caller holds Fabric.mu.
func (f *Fabric) sendAndUnlock(patient bool) {
	for turn := 0; f.outgoing; turn++ {
		f.outgoing = false
		l, crowded := f.outer.Take()
		f.mu.Unlock()
		switch {
		case l != nil && turn == turns:
			go f.sendOn(l)
			return
		case l != nil:
			l.Flush()
			if !f.outer.IsFilled() {
				return
			}
		case crowded != nil && patient:
			crowded.Rest()
		default:
			return
		}
		f.mu.Lock()
		f.outgoing = true
	}
	f.mu.Unlock()
}

// sendOn sends the packets that Take or Turn returned, and those that others leave. It needs no lock: it holds the
// link's.
func (f *Fabric) sendOn(l *roce.Link) {
	l.Flush()
	f.mu.Lock()
	f.outgoing = true
	f.sendAndUnlock(false)
}

// Sent waits until everything written before is sent, including packets left to another sending goroutine. It takes
// Fabric.mu.
func (f *Fabric) Sent() {
	if f.polled.Load() == nil {
		return
	}
	f.mu.Lock()
	all := f.outer.Links()
	f.mu.Unlock()
	for _, l := range all {
		l.Await()
		f.mu.Lock()
		l.Turn()
		f.mu.Unlock()
		f.sendOn(l) // others may have left packets since
	}
}

// Filled records that the outer wire has packets to send. The caller holds Fabric.mu.
func (f *Fabric) Filled() { f.outgoing = true }
