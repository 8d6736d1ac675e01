// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPolledDuringReset: a completion that is polled while its queue pair goes to RESET frees no more than its slot;
// slots that RESET freed stay free. The test tries to hit this race for a second.
func TestPolledDuringReset(t *testing.T) {
	var posted uint32
	var retired, turn atomic.Uint32
	recvs := NewRecvQueue(nil, 8, 1, false)
	waitFor := func(v uint32) {
		for spins := 1; turn.Load() != v; spins++ {
			if spins%1000 == 0 {
				runtime.Gosched()
			}
		}
	}
	var last atomic.Bool
	done := make(chan struct{})
	go func() { // the polling goroutine
		defer close(done)
		for i := uint32(1); !last.Load(); i++ {
			waitFor(2*i - 1)
			(&Slot{Sends: &retired, Position: 8*i - 4}).Retire(1)
			recvs.Retire(8*i-4, 1)
			turn.Store(2 * i)
		}
	}()
	start := time.Now()
	for i := uint32(1); !last.Load(); i++ {
		posted, recvs.Posted = 8*i, 8*i
		last.Store(time.Since(start) > time.Second)
		turn.Store(2*i - 1)
		retired.Store(posted)
		recvs.Reset()
		waitFor(2 * i)
		if retired.Load() != posted || recvs.Freed.Load() != recvs.Posted {
			last.Store(true)
			turn.Store(2*i + 1)
		}
	}
	<-done
	require.Equal(t, posted, retired.Load())
	require.Equal(t, recvs.Posted, recvs.Freed.Load())
}
