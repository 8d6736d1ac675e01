// SPDX-License-Identifier: BSD-2-Clause

// Package ticks takes timestamps in microsecond loops from the CPU's counter if the kernel uses it as its clock source.
// It reads the clock only at the start and the end.
package ticks

import (
	"os"
	"strings"
	"time"
)

// Clock measures time since Start.
type Clock struct {
	counts bool
	began  reading
}

// reading is a counter value and the time of it.
type reading struct {
	count int64
	time  time.Time
}

// trusted reports whether the kernel uses the counter, so that it runs at a constant rate and equally on all CPUs.
var trusted = sourceIs("/sys/devices/system/clocksource/clocksource0/current_clocksource", source)

func sourceIs(file, name string) bool {
	text, err := os.ReadFile(file)
	return err == nil && name != "" && strings.TrimSpace(string(text)) == name
}

// Start starts a clock.
func Start() *Clock { return start(trusted) }

func start(counts bool) *Clock { return &Clock{counts, read()} }

// Now returns the counter.
func (c *Clock) Now() int64 {
	if c.counts {
		return count()
	}
	return int64(time.Since(c.began.time))
}

// read reads counter and time together, and repeats if interrupted in between.
func read() (best reading) {
	for i, least := 0, int64(0); i < 5; i++ {
		before := count()
		now := time.Now()
		after := count()
		if i == 0 || after-before < least {
			least, best = after-before, reading{before + (after-before)/2, now}
		}
	}
	return best
}

// Durations converts differences of counts to durations; without a Clock they are nanoseconds. Call it last: the
// counter's rate is measured since Start.
func (c *Clock) Durations() func(counts int64) time.Duration {
	if c == nil || !c.counts {
		return func(n int64) time.Duration { return time.Duration(n) }
	}
	end := read()
	pace := float64(end.time.Sub(c.began.time)) / float64(max(1, end.count-c.began.count))
	return func(n int64) time.Duration { return time.Duration(pace * float64(n)) }
}
