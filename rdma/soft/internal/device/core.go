// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/clock"
)

// Core is the state that all objects of a fabric share: the lock, the clock, and the work that the holder of the lock
// executes before it unlocks. mu guards the other fields and all objects, unless noted otherwise.
type Core struct {
	mu       sync.Mutex
	clock    clock.Clock
	acked    sync.Cond // an event was acknowledged
	ready    []Task    // that may go on
	overruns []*CQ     // whose queue pairs break
	outgoing bool      // there are packets to send

	// Set once, by the engine.
	overran func(*CQ)
	send    func(patient bool) // sends packets, and unlocks; patient callers wait while others send many
}

// Task is work for the holder of the lock.
type Task interface{ Progress() }

// Lock locks the fabric. It takes Fabric.mu for its caller.
func (c *Core) Lock() { c.mu.Lock() }

// Unlock executes all ready work, and unlocks. The caller holds Fabric.mu.
func (c *Core) Unlock() {
	if len(c.ready)+len(c.overruns) > 0 || c.outgoing {
		c.workAndUnlock(false)
		return
	}
	c.mu.Unlock()
}

// UnlockPosted is Unlock for those who post: they wait where many packets wait to be sent.
func (c *Core) UnlockPosted() {
	if len(c.ready)+len(c.overruns) > 0 || c.outgoing {
		c.workAndUnlock(true)
		return
	}
	c.mu.Unlock()
}

// workAndUnlock unlocks also where work panics. The caller holds Fabric.mu.
func (c *Core) workAndUnlock(patient bool) {
	defer c.send(patient)
	c.work()
}

// work executes everything that became ready. The caller holds Fabric.mu.
func (c *Core) work() {
	for len(c.ready)+len(c.overruns) > 0 {
		if n := len(c.overruns); n > 0 {
			q := c.overruns[n-1]
			c.overruns = c.overruns[:n-1]
			c.overran(q)
			continue
		}
		t := c.ready[0]
		c.ready = c.ready[:copy(c.ready, c.ready[1:])]
		t.Progress()
	}
}

// After fires a function after a time, under the fabric's lock, unless Cancel comes first. The caller holds Fabric.mu.
func (c *Core) After(d time.Duration, fire func()) (number uint64) { return c.clock.After(d, fire) }

// Cancel takes back a timer that may have fired. The caller holds Fabric.mu.
func (c *Core) Cancel(number uint64) { c.clock.Cancel(number) }

// IsVirtual reports whether the clock stands still while programs are at work.
func (c *Core) IsVirtual() bool { return c.clock.IsVirtual() }

// Deliver calls arrive with the lock held, then executes everything that became ready. Wires call it to deliver delayed
// messages.
func (c *Core) Deliver(arrive func()) {
	c.mu.Lock()
	defer c.Unlock()
	arrive()
}

// due fires the expired timers of a real clock.
func (c *Core) due() {
	c.Deliver(func() {
		c.clock.Elapse(c.clock.Now(), c.work)
		c.clock.Arm()
	})
}

// step advances a virtual clock to the next timer, and reports whether there was one. It takes Fabric.mu.
func (c *Core) step() bool {
	if !c.clock.IsVirtual() {
		return false
	}
	c.mu.Lock()
	defer c.Unlock()
	return c.clock.Step(c.work)
}

// Advance advances a virtual clock by d and fires the timers that are due. With a real clock it does nothing.
func (c *Core) Advance(d time.Duration) {
	c.Deliver(func() {
		if c.clock.IsVirtual() {
			c.clock.Elapse(c.clock.Now()+int64(d), c.work)
		}
	})
}

// Now is the fabric's time since it was made.
func (c *Core) Now() time.Duration {
	c.mu.Lock()
	defer c.Unlock()
	return time.Duration(c.clock.Now())
}
