// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
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
