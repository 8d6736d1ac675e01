package device

import (
	"math"
	"slices"
	"time"
)

// clock is when timers of a fabric are due, in nanoseconds since it was made. Everything is under the fabric's lock.
type clock struct {
	virtual bool
	now     int64 // of a virtual clock
	start   time.Time
	count   uint64
	timers  []timer // the first one is due first
	wake    *time.Timer
	waiting []nudger // with a virtual clock, waits for events until there is a timer
}

type nudger interface{ nudge() }

type timer struct {
	due   int64
	count uint64 // timers that are due at once fire in the order in which they were set
	fire  func()
}

func (f *Fabric) now() int64 {
	if f.clock.virtual {
		return f.clock.now
	}
	return int64(time.Since(f.clock.start))
}

// isVirtual says whether the clock stands still while programs are at work.
func (f *Fabric) isVirtual() bool { return f.clock.virtual }

// after fires a function after a time, under the fabric's lock, unless cancel comes first.
func (f *Fabric) after(d time.Duration, fire func()) (number uint64) {
	c := &f.clock
	c.count++
	now := f.now()
	t := timer{now + min(max(int64(d), 0), math.MaxInt64-now), c.count, fire}
	i, _ := slices.BinarySearchFunc(c.timers, t, func(a, b timer) int {
		if a.due < b.due || a.due == b.due && a.count < b.count {
			return -1
		}
		return 1
	})
	c.timers = slices.Insert(c.timers, i, t)
	for _, w := range c.waiting {
		w.nudge()
	}
	c.waiting = c.waiting[:0]
	if i == 0 {
		f.arm()
	}
	return t.count
}

// cancel takes back a timer that may have fired.
func (f *Fabric) cancel(number uint64) {
	f.clock.timers = slices.DeleteFunc(f.clock.timers, func(t timer) bool { return t.count == number })
}

// arm lets the process's own timer go off when the first timer is due.
func (f *Fabric) arm() {
	c := &f.clock
	if c.virtual || len(c.timers) == 0 {
		return
	}
	d := time.Duration(max(c.timers[0].due-f.now(), 0))
	if c.wake == nil {
		c.wake = time.AfterFunc(d, f.fireDue)
		return
	}
	c.wake.Reset(d)
}

func (f *Fabric) fireDue() {
	f.mu.Lock()
	defer f.unlock()
	f.elapse(f.now())
	f.arm()
}

// elapse fires what is due until then.
func (f *Fabric) elapse(until int64) {
	c := &f.clock
	for len(c.timers) > 0 && c.timers[0].due <= until {
		t := c.timers[0]
		c.timers = slices.Delete(c.timers, 0, 1)
		if c.virtual {
			c.now = t.due
		}
		t.fire()
		f.work()
	}
	if c.virtual {
		c.now = max(c.now, until)
	}
}

// idle is called by a goroutine that found nothing to do: a virtual clock goes on to the next timer. It says whether there was one.
// It needs no lock: whether a clock is virtual does not change, and for the rest it takes it.
func (f *Fabric) idle() bool {
	if !f.clock.virtual {
		return false
	}
	f.mu.Lock()
	defer f.unlock()
	return f.step()
}

// step lets a virtual clock go on to the next timer, and says whether there was one.
func (f *Fabric) step() bool {
	c := &f.clock
	if !c.virtual || len(c.timers) == 0 {
		return false
	}
	f.elapse(c.timers[0].due)
	return true
}

// await is called for a wait for events elsewhere. A virtual clock advances, now or when there is a timer, because the waiter looks again.
func (f *Fabric) await(w nudger) {
	c := &f.clock
	switch {
	case !c.virtual:
	case len(c.timers) > 0:
		w.nudge()
	case !slices.Contains(c.waiting, w):
		c.waiting = append(c.waiting, w)
	}
}

// Advance lets a virtual clock go on by a time, and what is due happen. With a real clock it does nothing.
func (f *Fabric) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.unlock()
	if f.clock.virtual {
		f.elapse(f.clock.now + int64(d))
	}
}

// Now is the fabric's time since it was made.
func (f *Fabric) Now() time.Duration {
	f.mu.Lock()
	defer f.unlock()
	return time.Duration(f.now())
}
