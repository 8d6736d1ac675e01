// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sleeps returns how often threads of this process have gone to sleep.
func sleeps(t *testing.T) (all int) {
	files, err := filepath.Glob("/proc/self/task/*/status")
	require.NoError(t, err)
	for _, file := range files {
		text, _ := os.ReadFile(file) // of a thread that has not ended
		if m := regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\s+(\d+)`).FindSubmatch(text); m != nil {
			n, err := strconv.Atoi(string(m[1]))
			require.NoError(t, err)
			all += n
		}
	}
	return all
}

// TestManyCallsInARow checks that Go's scheduler does not wake up to retake the processor of a goroutine in each of its
// calls, as it does after 10 ms without rescheduling. No other thread of the test has work.
func TestManyCallsInARow(t *testing.T) {
	sleep := function("usleep") // in the C library, which the test library is linked with
	var each float64
	for range 5 { // one suffices, on a busy machine
		n, before, start := 0, sleeps(t), time.Now()
		for ; time.Since(start) < 300*time.Millisecond; n++ {
			_, err := sleep.Exported().Value(50)
			require.NoError(t, err)
		}
		if each = float64(sleeps(t)-before)/float64(n) - 1; each < 0.7 {
			return
		}
	}
	assert.Failf(t, "the scheduler is awake", "%.2f other sleeps per call", each)
}
