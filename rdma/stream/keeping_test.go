// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestKeeping: the only stream on a device keeps its thread after some waits, until other streams share the device or
// other goroutines are ready to run. With one processor it never does.
func TestKeeping(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	kept := false
	k := threadPolicy{keep: func(keep bool) { kept = keep }, yielded: time.Now().Add(time.Hour)}
	wait := func(keys ...uint64) {
		k.decide()
		var all []ibv.WC
		for _, key := range keys {
			all = append(all, ibv.WC{WRID: key << 32})
		}
		k.learn(7, all)
	}
	alone := func() {
		for range ownBefore {
			wait(7, 7)
			assert.False(t, kept)
		}
		wait(7)
	}
	alone()
	assert.True(t, kept)
	wait()
	assert.True(t, kept, "a wait without completions does not count")
	wait(7, 8)
	wait(7)
	assert.True(t, kept, "a single wait is not enough")
	wait(8)
	wait(8)
	wait(7)
	assert.False(t, kept)

	k.own = 0
	alone()
	require.True(t, kept)
	k.yielded = time.Time{}
	var over atomic.Bool
	for range 4 {
		go func() {
			for !over.Load() {
			}
		}()
	}
	assert.Eventually(t, func() bool {
		for kept && time.Since(k.yielded) <= yieldInterval {
		}
		k.decide()
		return !kept
	}, 10*time.Second, time.Microsecond)
	over.Store(true)

	runtime.GOMAXPROCS(1)
	k = threadPolicy{keep: k.keep}
	for range 4 * ownBefore {
		wait(7)
	}
	assert.False(t, kept)

	k = threadPolicy{keep: k.keep, always: true}
	for range 4 * ownBefore {
		wait(8)
	}
	assert.False(t, kept, "the program's request is permanent")
}
