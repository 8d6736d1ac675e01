// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"sync"
	"time"
)

// deadline is a time that can be changed while goroutines wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer   // or nil; it closes passed
	over  chan struct{} // closed at that time
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// set moves the deadline; the zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // its function runs, or has run
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

// signal leaves a token for the goroutine that waits, or will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
