// SPDX-License-Identifier: BSD-2-Clause

package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

type nudges int

func (n *nudges) Nudge() { *n++ }

// TestVirtual: timers fire in the order of their times, and timers with the same time in the order they were set. Each
// sees its own time. Canceled timers do not fire.
func TestVirtual(t *testing.T) {
	var c Clock
	c.Init(true, nil)
	var fired []string
	worked := 0
	set := func(d time.Duration, name string) uint64 {
		return c.After(d, func() {
			assert.EqualValues(t, d, c.Now())
			fired = append(fired, name)
		})
	}
	set(2, "c")
	set(1, "a")
	set(1, "b")
	c.Cancel(set(1, "cancelled"))
	for c.Step(func() { worked++ }) {
	}
	assert.Equal(t, []string{"a", "b", "c"}, fired)
	assert.Equal(t, 3, worked)
	assert.EqualValues(t, 2, c.Now())
	c.Elapse(10, func() {})
	assert.EqualValues(t, 10, c.Now(), "time goes on without timers, too")
	c.Elapse(5, func() {})
	assert.EqualValues(t, 10, c.Now(), "and not back")
}

// TestAwait: a wait is nudged once, when a timer is set.
func TestAwait(t *testing.T) {
	var c Clock
	c.Init(true, nil)
	var n nudges
	c.Await(&n)
	c.Await(&n)
	assert.Zero(t, n)
	c.After(1, func() {})
	assert.EqualValues(t, 1, n)
	c.Await(&n)
	assert.EqualValues(t, 2, n, "at once")
	c.After(1, func() {})
	assert.EqualValues(t, 2, n)
}

// TestReal: a real clock calls due for the earliest timer, even if it was set last.
func TestReal(t *testing.T) {
	var c Clock
	due := make(chan struct{}, 1)
	c.Init(false, func() { due <- struct{}{} })
	c.After(time.Hour, func() { t.Error("fired too early") })
	fired := false
	c.After(time.Millisecond, func() { fired = true })
	<-due
	c.Elapse(c.Now(), func() {})
	c.Arm()
	assert.True(t, fired)
	assert.False(t, c.Step(func() {}), "only a virtual clock is moved")
	assert.InDelta(t, time.Now().UnixNano(), c.Wall(), float64(time.Minute))
}
