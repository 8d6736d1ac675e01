// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/yield"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// deadline is a changeable time with a channel that is closed at that time.
type deadline struct {
	mu      sync.Mutex
	timer   *time.Timer
	over    atomic.Pointer[chan struct{}] // closed at that time
	expired func()                        // called at that time
}

func newDeadline() *deadline {
	d := new(deadline)
	d.renew()
	return d
}

func (d *deadline) renew() {
	over := make(chan struct{})
	d.over.Store(&over)
}

// set changes the deadline. The zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed() // expired runs or has run
	}
	d.timer = nil
	if isDone(d.passed()) {
		d.renew()
	}
	if t.IsZero() {
		return
	}
	over := *d.over.Load()
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() {
			close(over)
			d.expired()
		})
		return
	}
	close(over)
	d.expired()
}

func (d *deadline) passed() <-chan struct{} { return *d.over.Load() }

// stop releases the timer.
func (d *deadline) stop() { d.set(time.Time{}) }

// LearnedBusyPoll is an adaptive [Config.BusyPoll]. A connection measures how fast replies arrive when its Reads poll
// and when they sleep. It keeps polling if polling is faster by an eighth or replies then arrive within 100 µs.
// Otherwise it sleeps and retries polling less and less often. A Read polls for a multiple of the typical reply time,
// at most 5 ms, and then sleeps. It does not poll if replies take longer, or with one processor. One goroutine polls
// for all connections of a device.
const LearnedBusyPoll time.Duration = -1

const (
	maxLearned  = 5 * time.Millisecond
	fastReply   = 100 * time.Microsecond // polling for replies within this time always pays: waking a thread is slow
	waitsTried  = 8                      // number of waits of each kind before the kinds are compared
	waitsPolled = 1024                   // number of polling waits after which sleeping is measured again
	maxMisses   = 10                     // each miss doubles the number of sleeping waits before polling is retried
)

// learned is the state of LearnedBusyPoll: statistics of waits that polled and waits that slept.
type learned struct {
	polled, slept answers
	polling       bool // waits poll
	n             int  // number of waits since polling changed
	misses        int  // consecutive times that polling was not faster
	began         time.Time
	until         time.Time // end of polling in this wait, or zero
}

// answers is the mean time until the reply over recent waits of one kind.
type answers struct {
	n    int // number of waits, at most waitsTried
	mean time.Duration
}

func (a *answers) add(took, limit time.Duration) {
	took = min(took, limit)
	a.n = min(a.n+1, waitsTried)
	a.mean += (took - a.mean) / time.Duration(a.n)
}

// begin starts measuring a wait, unless one is being measured.
func (l *learned) begin() {
	if !l.began.IsZero() {
		return
	}
	l.began = time.Now()
	if l.polling && runtime.GOMAXPROCS(0) > 1 {
		limit := l.slept.mean // polling is useless if it would take longer than sleeping
		if l.polled.n > 0 {
			limit = max(limit, l.polled.mean)
		}
		l.until = l.began.Add(min(4*limit, maxLearned))
	}
}

// end ends the measurement of a wait, if any.
func (l *learned) end() {
	if l.began.IsZero() {
		return
	}
	took := time.Since(l.began)
	if l.until.IsZero() { // limit the time: a pause of the peer is not a slow reply
		l.slept.add(took, 2*maxLearned)
	} else { // limit the time of very late replies
		l.polled.add(took, 2*l.slept.mean)
	}
	l.began, l.until = time.Time{}, time.Time{}
	l.n++
	if !l.polling {
		if l.n >= waitsTried<<l.misses && l.slept.mean < maxLearned {
			l.turn()
		}
		return
	}
	switch {
	case l.n < waitsTried:
	case l.polled.mean > max(l.slept.mean-l.slept.mean/8, fastReply):
		l.misses = min(l.misses+1, maxMisses)
		l.turn()
	case l.n == waitsTried:
		l.misses = 0
	case l.n >= waitsPolled:
		l.turn()
	}
}

// turn switches between polling and sleeping and resets the statistics of the new kind.
func (l *learned) turn() {
	l.polling, l.n = !l.polling, 0
	if l.polling {
		l.polled = answers{}
	} else {
		l.slept = answers{}
	}
}

// polls reports whether the current wait still polls.
func (l *learned) polls() bool { return !l.until.IsZero() && time.Now().Before(l.until) }

// threadPolicy decides whether the goroutine that waits for a poller's completions blocks its thread. That is faster
// for its own stream, but slower for other goroutines: while a thread sleeps in a system call, they get its processor
// only when Go's scheduler retakes it. Unless the program requests KeepThread, the goroutine therefore blocks its
// thread only if recent completions were all its own stream's and no other goroutine is ready to run.
type threadPolicy struct {
	keep    func(bool) // KeepThread of the poller's channel
	always  bool       // requested by the program
	kept    bool
	own     int // recent waits with only its own completions, at most ownBefore
	yielded time.Time
}

const (
	ownBefore     = 16                   // value of own at which the goroutine keeps its thread
	yieldInterval = 4 * time.Millisecond // interval of checks whether other goroutines are ready to run
	yieldLimit    = time.Millisecond     // a yield that takes longer means that other goroutines are ready to run
)

// decide is called before a stream's goroutine waits. The background goroutine does not call it.
func (k *threadPolicy) decide() {
	if k.always {
		return
	}
	if k.kept {
		if now := time.Now(); now.Sub(k.yielded) > yieldInterval {
			k.yielded = now
			yield.Here()
			if time.Since(now) > yieldLimit || runtime.GOMAXPROCS(0) == 1 {
				k.own = 0
			}
		}
	}
	switch {
	case k.kept && k.own == 0:
		k.kept = false
	case !k.kept && k.own == ownBefore && runtime.GOMAXPROCS(0) > 1:
		k.kept = true
	default:
		return
	}
	k.keep(k.kept)
}

// learn records the completions of a wait. key is the waiting stream's.
func (k *threadPolicy) learn(key uint32, all []ibv.WC) {
	if k.always || len(all) == 0 {
		return
	}
	for i := range all {
		if protocol.KeyOf(all[i].WRID) != key {
			k.own = max(k.own-ownBefore/2, 0)
			return
		}
	}
	k.own = min(k.own+1, ownBefore)
}
