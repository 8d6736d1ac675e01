// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// progress counts the progress of a test. A nil progress counts nothing.
type progress struct {
	show  func(line string)
	sizes int // of the complete test

	done  atomic.Int64 // messages of this size
	size  atomic.Int64
	nth   atomic.Int64
	began atomic.Int64 // wall clock in nanoseconds
}

// updateInterval is the interval between updates.
const updateInterval = 200 * time.Millisecond

// watch shows progress until it is stopped. Without show it returns nil.
func watch(o *Options) (l *progress, stop func()) {
	if o.Progress == nil || o.Duration == 0 && !o.All {
		return nil, func() {}
	}
	l = &progress{show: o.Progress, sizes: len(o.Sizes)}
	end := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(updateInterval)
		defer tick.Stop()
		for {
			select {
			case <-end:
				l.show("")
				return
			case <-tick.C:
				if l.nth.Load() > 0 {
					l.show(l.line(o.Duration))
				}
			}
		}
	})
	return l, func() { close(end); group.Wait() }
}

// line returns the progress as text.
func (l *progress) line(of time.Duration) string {
	passed := time.Since(time.Unix(0, l.began.Load()))
	done := l.done.Load()
	text := fmt.Sprintf("%d bytes", l.size.Load())
	if l.sizes > 1 {
		text += fmt.Sprintf(" (%d of %d sizes)", l.nth.Load(), l.sizes)
	}
	if of > 0 {
		text += fmt.Sprintf("  %.1f of %.0f s", min(passed, of).Seconds(), of.Seconds())
	}
	return text + fmt.Sprintf("  %d messages, %.0f/s", done, float64(done)/max(passed.Seconds(), 1e-3))
}

// next starts another size.
func (l *progress) next(size int) {
	if l != nil {
		l.done.Store(0)
		l.size.Store(int64(size))
		l.began.Store(time.Now().UnixNano())
		l.nth.Add(1)
	}
}

// count adds messages.
func (l *progress) count(messages int) {
	if l != nil {
		l.done.Store(int64(messages))
	}
}
