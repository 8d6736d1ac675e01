// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"sync"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/clock"
)

// Core is the state that all objects of a fabric share: the lock, the clock, and the work that the holder of the lock
// executes before it unlocks. Mu guards the other fields and all objects, unless noted otherwise.
type Core struct {
	Mu       sync.Mutex
	Clock    clock.Clock
	Acked    sync.Cond // an event was acknowledged
	Ready    []Task    // queue pairs with work
	overruns []*CQ     // overrun queues, whose queue pairs break
	Outgoing bool      // packets are waiting to be sent

	// Set once, by the engine.
	Overran func(*CQ)
	Send    func(patient bool) // sends packets, and unlocks; patient callers wait while others send many
}

// Task is work for the holder of the lock.
type Task interface{ Progress() }

// Lock locks Mu.
func (c *Core) Lock() { c.Mu.Lock() }

// Unlock executes all ready work, and unlocks. The caller holds Core.Mu.
func (c *Core) Unlock() { c.unlock(false) }

// UnlockPosted is Unlock for posts, which wait while many packets are waiting to be sent.
func (c *Core) UnlockPosted() { c.unlock(true) }

func (c *Core) unlock(patient bool) {
	if len(c.Ready)+len(c.overruns) > 0 || c.Outgoing {
		c.workAndUnlock(patient)
		return
	}
	c.Mu.Unlock()
}

// workAndUnlock executes all ready work, and unlocks even if it panics. The caller holds Core.Mu.
func (c *Core) workAndUnlock(patient bool) {
	defer c.Send(patient)
	c.Work()
}

// Work executes everything that became ready. The caller holds Core.Mu.
func (c *Core) Work() {
	for len(c.Ready)+len(c.overruns) > 0 {
		if n := len(c.overruns); n > 0 {
			q := c.overruns[n-1]
			c.overruns = c.overruns[:n-1]
			c.Overran(q)
			continue
		}
		t := c.Ready[0]
		c.Ready = c.Ready[:copy(c.Ready, c.Ready[1:])]
		t.Progress()
	}
}

// After calls a function after a time, under the fabric's lock, unless Clock.Cancel is called first. The caller holds
// Core.Mu.
func (c *Core) After(d time.Duration, fire func()) (number uint64) { return c.Clock.After(d, fire) }

// Deliver calls arrive with the lock held, then executes everything that became ready. Wires call it to deliver delayed
// messages.
func (c *Core) Deliver(arrive func()) {
	c.Mu.Lock()
	defer c.Unlock()
	arrive()
}

// Due fires the expired timers of a real clock.
func (c *Core) Due() {
	c.Deliver(func() {
		c.Clock.Elapse(c.Clock.Now(), c.Work)
		c.Clock.Arm()
	})
}

// Step advances a virtual clock to the next timer, and reports whether there was one. It takes Core.Mu.
func (c *Core) Step() bool {
	if !c.Clock.IsVirtual() {
		return false
	}
	c.Mu.Lock()
	defer c.Unlock()
	return c.Clock.Step(c.Work)
}

// Advance advances a virtual clock by d and fires the timers that are due. With a real clock it does nothing.
func (c *Core) Advance(d time.Duration) {
	c.Deliver(func() {
		if c.Clock.IsVirtual() {
			c.Clock.Elapse(c.Clock.Now()+int64(d), c.Work)
		}
	})
}

// Now returns the time since the creation of the fabric.
func (c *Core) Now() time.Duration {
	c.Mu.Lock()
	defer c.Unlock()
	return time.Duration(c.Clock.Now())
}
