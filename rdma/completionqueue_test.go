package rdma

import (
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// C writes completions that nobody reads into memory that is still theirs.
func TestPollKeepsItsMemory(t *testing.T) {
	for _, tracked := range []bool{false, true} {
		d := newDevice(t, ibv.QPT_RC)
		var collected atomic.Bool
		address, err := space.Slot(func(_, _, _, _, _, _ uintptr) (uintptr, runtime.Errno) {
			for range 3 {
				goruntime.GC()
				time.Sleep(time.Millisecond)
			}
			assert.False(t, collected.Load(), "tracked: %v", tracked)
			return 0, 0
		})
		require.NoError(t, err)
		d.context.Ops.PollCQ = ibv.FuncPtr(address)
		cq, err := NewCompletionQueue(&d.cq, QueueOptions{})
		require.NoError(t, err)
		if tracked {
			cq.Track(0x12, nil, nil)
		}
		poll(cq, &collected)
		require.Eventually(t, func() bool { goruntime.GC(); return collected.Load() }, 10*time.Second, time.Millisecond, "or the test shows nothing")
	}
}

//go:noinline
func poll(cq *CompletionQueue, collected *atomic.Bool) {
	wcs := make([]ibv.WC, 16)
	goruntime.SetFinalizer(&wcs[0], func(*ibv.WC) { collected.Store(true) })
	cq.Poll(wcs)
}
