// SPDX-License-Identifier: BSD-2-Clause

// Package clock implements the time and the timers of a fabric. A real clock follows the process's clock. A virtual
// clock stands still while programs run, and advances to the next timer, without waiting, when all of them wait.
package clock

import (
	"math"
	"slices"
	"time"
)

// Clock schedules timers, in nanoseconds since Init. All methods except IsVirtual require the fabric's lock.
type Clock struct {
	virtual bool
	now     int64 // virtual clock only
	start   time.Time
	count   uint64
	timers  []timer // sorted by time
	due     func()  // real clock only: called without a lock when the first timer expires
	wake    *time.Timer
	waiting []Nudger // virtual clock only: waits to wake when a timer is set
}

// Nudger is a wait outside the fabric's calls. Nudge makes it check again.
type Nudger interface{ Nudge() }

type timer struct {
	due   int64
	count uint64 // orders timers with the same time
	fire  func()
}

// Init starts the clock. A real clock calls due, without a lock, when its first timer expires. due then takes the lock
// and calls Elapse and Arm.
func (c *Clock) Init(virtual bool, due func()) {
	*c = Clock{virtual: virtual, start: time.Now(), due: due}
}

// IsVirtual reports whether the clock is virtual. This never changes, so it needs no lock.
func (c *Clock) IsVirtual() bool { return c.virtual }

// Now returns the time since Init.
func (c *Clock) Now() int64 {
	if c.virtual {
		return c.now
	}
	return int64(time.Since(c.start))
}

// Wall returns the wall clock time in nanoseconds. A virtual clock starts at the epoch.
func (c *Clock) Wall() int64 {
	if c.virtual {
		return c.now
	}
	return time.Now().UnixNano()
}

// After calls fire after a time, unless Cancel is called before.
func (c *Clock) After(d time.Duration, fire func()) (number uint64) {
	c.count++
	now := c.Now()
	t := timer{now + min(max(int64(d), 0), math.MaxInt64-now), c.count, fire}
	i, _ := slices.BinarySearchFunc(c.timers, t, func(a, b timer) int {
		if a.due < b.due || a.due == b.due && a.count < b.count {
			return -1
		}
		return 1
	})
	c.timers = slices.Insert(c.timers, i, t)
	for _, w := range c.waiting {
		w.Nudge()
	}
	c.waiting = c.waiting[:0]
	if i == 0 {
		c.Arm()
	}
	return t.count
}

// Cancel removes a timer. The timer may have fired.
func (c *Clock) Cancel(number uint64) {
	c.timers = slices.DeleteFunc(c.timers, func(t timer) bool { return t.count == number })
}

// Arm sets the process's timer to the first timer.
func (c *Clock) Arm() {
	if c.virtual || len(c.timers) == 0 {
		return
	}
	d := time.Duration(max(c.timers[0].due-c.Now(), 0))
	if c.wake == nil {
		c.wake = time.AfterFunc(d, c.due)
		return
	}
	c.wake.Reset(d)
}

// Elapse fires the timers that expire by until, and calls work after each.
func (c *Clock) Elapse(until int64, work func()) {
	for len(c.timers) > 0 && c.timers[0].due <= until {
		t := c.timers[0]
		c.timers = slices.Delete(c.timers, 0, 1)
		if c.virtual {
			c.now = t.due
		}
		t.fire()
		work()
	}
	if c.virtual {
		c.now = max(c.now, until)
	}
}

// Step advances a virtual clock to the next timer, like Elapse, and reports whether there was one.
func (c *Clock) Step(work func()) bool {
	if !c.virtual || len(c.timers) == 0 {
		return false
	}
	c.Elapse(c.timers[0].due, work)
	return true
}

// Await registers a wait for events elsewhere. A virtual clock advances, now or when a timer is set, because the wait
// then checks again.
func (c *Clock) Await(w Nudger) {
	switch {
	case !c.virtual:
	case len(c.timers) > 0:
		w.Nudge()
	case !slices.Contains(c.waiting, w):
		c.waiting = append(c.waiting, w)
	}
}
