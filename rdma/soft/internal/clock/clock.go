// SPDX-License-Identifier: BSD-2-Clause

// Package clock has the time and the timers of a fabric. A real clock is the process's. A virtual one stands still
// while programs are at work, and costs no time: it goes on to the next timer when nobody has anything to do.
package clock

import (
	"math"
	"slices"
	"time"
)

// Clock is when timers are due, in nanoseconds since it was made. One caller at a time uses it: all methods are called
// with the fabric's lock, but for IsVirtual.
type Clock struct {
	virtual bool
	now     int64 // of a virtual clock
	start   time.Time
	count   uint64
	timers  []timer // the first one is due first
	due     func()  // of a real clock: called without a lock when the first timer is due
	wake    *time.Timer
	waiting []Nudger // with a virtual clock, waits for events until there is a timer
}

// Nudger is a wait outside the fabric's calls, which Nudge has look again.
type Nudger interface{ Nudge() }

type timer struct {
	due   int64
	count uint64 // timers that are due at once fire in the order in which they were set
	fire  func()
}

// Init starts the clock. A real one calls due, without any lock, when the first of its timers is due. Due then takes
// the lock and calls Elapse and Arm.
func (c *Clock) Init(virtual bool, due func()) {
	*c = Clock{virtual: virtual, start: time.Now(), due: due}
}

// IsVirtual says whether the clock stands still while programs are at work. That does not change, so it needs no lock.
func (c *Clock) IsVirtual() bool { return c.virtual }

// Now is the time since Init.
func (c *Clock) Now() int64 {
	if c.virtual {
		return c.now
	}
	return int64(time.Since(c.start))
}

// Wall is the time of the wall clock in nanoseconds. That of a virtual clock began with the epoch.
func (c *Clock) Wall() int64 {
	if c.virtual {
		return c.now
	}
	return time.Now().UnixNano()
}

// After fires a function after a time, unless Cancel comes first.
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

// Cancel takes back a timer that may have fired.
func (c *Clock) Cancel(number uint64) {
	c.timers = slices.DeleteFunc(c.timers, func(t timer) bool { return t.count == number })
}

// Arm lets the process's own timer go off when the first timer is due.
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

// Elapse fires what is due until then, and calls work behind each.
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

// Step lets a virtual clock go on to the next timer, as Elapse does, and says whether there was one.
func (c *Clock) Step(work func()) bool {
	if !c.virtual || len(c.timers) == 0 {
		return false
	}
	c.Elapse(c.timers[0].due, work)
	return true
}

// Await is called for a wait for events elsewhere. A virtual clock goes on, now or when there is a timer, because the
// wait looks again.
func (c *Clock) Await(w Nudger) {
	switch {
	case !c.virtual:
	case len(c.timers) > 0:
		w.Nudge()
	case !slices.Contains(c.waiting, w):
		c.waiting = append(c.waiting, w)
	}
}
