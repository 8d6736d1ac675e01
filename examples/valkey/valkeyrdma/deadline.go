// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"sync"
	"time"
)

// deadline is a time that can be changed while goroutines wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer   // closes passed; or nil
	over  chan struct{} // closed at the deadline
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// set changes the deadline. The zero time means no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer has fired
	}
	d.timer = nil
	if isClosed(d.over) {
		d.over = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	over := d.over
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { close(over) })
	} else {
		close(over)
	}
}

// passed returns a channel that is closed when the current deadline has passed.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// signal stores a token for the next waiting goroutine.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
