// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// TestSoftStreamWeight: one side of an idle stream on a software device uses at most 64 KiB of Go's heap and stacks,
// including the device's rings, and 96 KiB of all memory besides its buffers, but no goroutine or descriptor. With
// GOVERBS_EVERYTHING, a listener has 10,000 streams.
func TestSoftStreamWeight(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector makes frames larger")
	}
	pairs := 200
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		pairs = 10_000
	}
	config := Config{Backend: newFabric(t, soft.Options{}), Buffer: protocol.MinBuffer}
	l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	var all []net.Conn
	connect := func() {
		accepted := make(chan net.Conn, 1)
		go func() {
			defer close(accepted)
			if c, err := l.Accept(); err == nil {
				accepted <- c
			}
		}()
		client, err := dialer(config).Dial(soon(t), l.Addr().String())
		require.NoError(t, err)
		server := <-accepted
		require.NotNil(t, server)
		all = append(all, client, server)
	}
	connect() // creates the shared objects
	before := weigh(t)
	for range pairs {
		connect()
	}
	after := weigh(t)
	shared := &all[0].(*Conn).shared.all
	pollers := len((*shared)[waitPolicy{}])
	goroutines := before.goroutines + pollers + runtime.GOMAXPROCS(0)
	for try := 0; try < 20 && after.goroutines > goroutines; try++ { // on a busy machine, goroutines may end late
		after = weigh(t)
	}
	ends := 2 * pairs
	each := func(of func(weight) int) int { return (of(after) - of(before)) / ends }
	heap, stacks := each(func(w weight) int { return w.heap }), each(func(w weight) int { return w.stacks })
	resident := each(func(w weight) int { return w.resident })
	t.Logf("%d ends: %d bytes of heap, %d of stacks, %d in all", ends, heap, stacks, resident)
	t.Logf("goroutines: %d before and %d after, descriptors %d and %d", before.goroutines, after.goroutines,
		before.files, after.files)
	assert.LessOrEqual(t, heap+stacks, 64<<10)
	assert.LessOrEqual(t, resident, 96<<10+protocol.MinBuffer*3/2)
	need := (ends + 2) * protocol.Entries(new(protocol.Stream), all[0].(*Conn).shared.device)
	assert.GreaterOrEqual(t, pollers, (need+maxEntries-1)/maxEntries, "no queue overflows")
	assert.LessOrEqual(t, after.goroutines, goroutines)
	assert.LessOrEqual(t, after.files-before.files, 4*(pollers+runtime.GOMAXPROCS(0)))
	var closing sync.WaitGroup
	for one := range min(8, len(all)) {
		closing.Go(func() {
			for i := one; i < len(all); i += 8 {
				assert.NoError(t, all[i].Close())
			}
		})
	}
	closing.Wait()
	assert.Len(t, (*shared)[waitPolicy{}], 1, "the others were closed with their streams")
}

// weight is a process's resource usage.
type weight struct{ heap, stacks, resident, goroutines, files int }

func weigh(t *testing.T) (w weight) {
	t.Helper()
	time.Sleep(2 * backgroundAfter) // goroutines end
	for range 2 {                   // the second frees objects that the first finalizes
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.heap, w.stacks, w.goroutines = int(m.HeapInuse), int(m.StackInuse), runtime.NumGoroutine()
	w.resident, w.files = resident(t)
	return w
}
