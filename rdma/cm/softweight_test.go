// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftStreamWeight: an end of a stream on a software device costs at most 64 KiB of Go's heap and stacks, with the
// rings of the device and its two goroutines. The buffers that Config asks for are outside the heap; so are three pages
// beside them, for batches and control messages.
func TestSoftStreamWeight(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector makes frames larger")
	}
	const (
		most  = 64 << 10
		pairs = 200
	)
	config := &Config{Backend: newFabric(t, soft.Options{}), Buffer: protocol.MinBuffer}
	l, err := config.Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	connect := func() {
		accepted := make(chan net.Conn, 1)
		go func() {
			defer close(accepted)
			if c, err := l.Accept(); err == nil {
				accepted <- c
			}
		}()
		client, err := config.Dial(soon(t), l.Addr().String())
		keep(t, client, err)
		server := <-accepted
		require.NotNil(t, server)
		t.Cleanup(func() { server.Close() })
	}
	connect() // which makes what all connections share
	before := inUse()
	for range pairs {
		connect()
	}
	after := inUse()
	heap, stacks := (after.HeapInuse-before.HeapInuse)/(2*pairs), (after.StackInuse-before.StackInuse)/(2*pairs)
	t.Logf("%d bytes of heap and %d of stacks", heap, stacks)
	require.LessOrEqual(t, heap+stacks, uint64(most))
}

// inUse is memory that is not garbage.
func inUse() (m runtime.MemStats) {
	for range 2 { // what the first finalizes is garbage for the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}
