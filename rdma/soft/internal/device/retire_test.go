// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPolledDuringReset: a completion that is polled while its queue pair goes to RESET gives back no more than its
// slot; what RESET gave back stays free. It is a race of a few instructions, which is tried for a second.
func TestPolledDuringReset(t *testing.T) {
	q, recvs, turn := new(qp), newRecvQueue(nil, 8, 1, false), atomic.Uint32{}
	until := func(v uint32) {
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
			until(2*i - 1)
			(&whose{sender: &q.retired, position: 8*i - 4}).retire(1)
			recvs.retire(8*i-4, 1)
			turn.Store(2 * i)
		}
	}()
	start := time.Now()
	for i := uint32(1); !last.Load(); i++ {
		q.posted, recvs.posted = 8*i, 8*i
		last.Store(time.Since(start) > time.Second)
		turn.Store(2*i - 1)
		q.retired.Store(q.posted)
		recvs.reset()
		until(2 * i)
		if q.retired.Load() != q.posted || recvs.freed.Load() != recvs.posted {
			last.Store(true)
			turn.Store(2*i + 1)
		}
	}
	<-done
	require.Equal(t, q.posted, q.retired.Load())
	require.Equal(t, recvs.posted, recvs.freed.Load())
}
