// SPDX-License-Identifier: BSD-2-Clause

package ticks

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestClock compares both clocks with the system's time.
func TestClock(t *testing.T) {
	for _, counts := range []bool{false, true}[:1+min(1, len(source))] {
		var all []float64
		for range 50 { // the machine may be busy
			c, before := start(counts), time.Now()
			from := c.Now()
			time.Sleep(20 * time.Millisecond)
			to, elapsed := c.Now(), time.Since(before)
			all = append(all, float64(c.Durations()(to-from))/float64(elapsed))
			if math.Abs(closest(all)-1) < 0.02 {
				break
			}
		}
		assert.InDelta(t, 1, closest(all), 0.02, "counts: %v: %v", counts, all)
	}
}

// closest returns the ratio nearest to 1.
func closest(all []float64) (best float64) {
	for _, v := range all {
		if abs := max(v-1, 1-v); best == 0 || abs < max(best-1, 1-best) {
			best = v
		}
	}
	return best
}

// TestTrusted checks that a counter which the kernel does not use is not used.
func TestTrusted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clocksource")
	assert.False(t, sourceIs(file, "tsc"))
	require.NoError(t, os.WriteFile(file, []byte("tsc\n"), 0o600))
	assert.True(t, sourceIs(file, "tsc"))
	assert.False(t, sourceIs(file, "hpet"))
	assert.False(t, sourceIs(file, ""))
}
