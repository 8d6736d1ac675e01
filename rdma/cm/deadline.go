// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"runtime"
	"sync"
	"time"
)

// deadline is a time that can be changed and waited for together with other events.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed at that time
	came  func()        // also called then
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// set moves the deadline; the zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // its function runs, or ran
	}
	d.timer = nil
	select {
	case <-d.over:
		d.over = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	over := d.over
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() {
			close(over)
			d.came()
		})
		return
	}
	close(over)
	d.came()
}

func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

// stop lets go of the timer.
func (d *deadline) stop() { d.set(time.Time{}) }

// LearnedBusyPoll is a [Config.BusyPoll] that each connection learns: a waiting Read polls for as long as the peer's
// answers were seen to take, and a little more, before it sleeps. It does not poll where that is more than 2 ms, after
// polls that found nothing (for some Reads, and for ever more the more often that happens), or with one processor. One
// goroutine polls for all connections of a device, and an idle connection sleeps.
const LearnedBusyPoll time.Duration = -1

const (
	mostLearned = 2 * time.Millisecond
	mostMisses  = 10
)

// learned is what a connection has learned of its waits for the peer.
type learned struct {
	mean, spread time.Duration // as TCP keeps them of round trips
	misses       int           // polls that found nothing, less those that did
	rest         int           // waits that do not poll
	began        time.Time     // of the wait
	until        time.Time     // it polls, if it does
}

// begin begins a wait, unless it has begun.
func (l *learned) begin() {
	if !l.began.IsZero() {
		return
	}
	l.began = time.Now()
	if l.rest > 0 {
		l.rest--
		return
	}
	if budget := l.mean + 2*l.spread; l.mean > 0 && budget <= mostLearned && runtime.GOMAXPROCS(0) > 1 {
		l.until = l.began.Add(budget)
	}
}

// end ends the wait, if one has begun.
func (l *learned) end() {
	if l.began.IsZero() {
		return
	}
	now := time.Now()
	took := min(now.Sub(l.began), 2*mostLearned) // a pause says nothing of answers
	if l.mean == 0 {
		l.mean, l.spread = took, took/2
	} else {
		l.spread += (max(took-l.mean, l.mean-took) - l.spread) / 4
		l.mean += (took - l.mean) / 8
	}
	switch {
	case l.until.IsZero():
	case now.Before(l.until):
		l.misses = max(l.misses-1, 0)
	default:
		if l.misses = min(l.misses+1, mostMisses); l.misses > 1 {
			l.rest = 1 << l.misses
		}
	}
	l.began, l.until = time.Time{}, time.Time{}
}

// polls reports whether the wait still polls.
func (l *learned) polls() bool { return !l.until.IsZero() && time.Now().Before(l.until) }
