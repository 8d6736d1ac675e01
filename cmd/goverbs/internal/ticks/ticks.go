// SPDX-License-Identifier: BSD-2-Clause

// Package ticks takes times in a loop whose turns take a microsecond: it reads the processor's counter, where the
// kernel trusts that, too, and asks for the time at the beginning and the end alone.
package ticks

import (
	"os"
	"strings"
	"time"
)

// Clock is a time that began with Start.
type Clock struct {
	counts bool
	began  reading
}

// reading is a count and the time of it.
type reading struct {
	count int64
	time  time.Time
}

// trusted says whether the kernel takes its time from the counter: it runs at one pace, on all processors alike.
var trusted = sourceIs("/sys/devices/system/clocksource/clocksource0/current_clocksource", source)

func sourceIs(file, name string) bool {
	text, err := os.ReadFile(file)
	return err == nil && name != "" && strings.TrimSpace(string(text)) == name
}

// Start starts a clock.
func Start() *Clock { return start(trusted) }

func start(counts bool) *Clock { return &Clock{counts, read()} }

// Now is a count since some time.
func (c *Clock) Now() int64 {
	if c.counts {
		return count()
	}
	return int64(time.Since(c.began.time))
}

// read takes a count and the time of it. It does so again where something came in between.
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

// Durations makes durations of differences of counts; without a Clock, they are nanoseconds. It is for the end: the
// longer ago the beginning is, the better it knows the counter's pace.
func (c *Clock) Durations() func(counts int64) time.Duration {
	if c == nil || !c.counts {
		return func(n int64) time.Duration { return time.Duration(n) }
	}
	end := read()
	pace := float64(end.time.Sub(c.began.time)) / float64(max(1, end.count-c.began.count))
	return func(n int64) time.Duration { return time.Duration(pace * float64(n)) }
}
