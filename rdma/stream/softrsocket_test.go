// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// TestSoftRSocketNetConn: two rsockets of this package pass the tests of net.Conn.
func TestSoftRSocketNetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := softPipe(t, Config{Protocol: RSocket, Buffer: 64 << 10})
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

// TestSoftRSocketDelivers: more data than fits into the ring arrives in pieces of any size, followed by the end of
// data.
func TestSoftRSocketDelivers(t *testing.T) {
	for _, buffer := range []int{protocol.MinBuffer, 64 << 10, DefaultBuffer} {
		a, b := softPipe(t, Config{Protocol: RSocket, Buffer: buffer})
		want := random(5*buffer + rand.IntN(1000))
		go func() {
			for rest := want; len(rest) > 0; {
				n, err := a.Write(rest[:min(len(rest), 1+rand.IntN(2*buffer))])
				if !assert.NoError(t, err) {
					return
				}
				rest = rest[n:]
			}
			assert.NoError(t, a.CloseWrite())
		}()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%d bytes of %d", len(got), len(want))
		_, err = b.Write([]byte("the other way"))
		require.NoError(t, err)
		require.NoError(t, b.Close())
		got, err = io.ReadAll(a)
		require.NoError(t, err)
		assert.Equal(t, "the other way", string(got))
		require.NoError(t, a.Close())
	}
}

// TestSoftRSocketMaps: one side maps memory, and the other writes inside and outside of it.
func TestSoftRSocketMaps(t *testing.T) {
	a, b := softPipe(t, Config{Protocol: RSocket, Buffer: 16 << 10, Maps: 2})
	var buffers [2]*rdma.Buffer
	for i := range buffers {
		var err error
		buffers[i], err = rdma.NewBuffer(100_000, rdma.MapOptions{})
		keep(t, buffers[i], err)
		require.NoError(t, b.Map(buffers[i], int64(i)<<40))
	}
	more, err := rdma.NewBuffer(64, rdma.MapOptions{})
	keep(t, more, err)
	assert.ErrorContains(t, b.Map(more, 0), "accepts no more")
	_, err = b.Write([]byte{1})
	require.NoError(t, err)
	_, err = io.ReadFull(a, make([]byte, 1)) // both mappings have arrived
	require.NoError(t, err)
	want := random(90_000)
	n, err := a.WriteAt(want, 1<<40+7)
	require.NoError(t, err)
	assert.Equal(t, len(want), n)
	n, err = a.WriteAt(want[:200], 100_000-50)
	assert.Equal(t, 50, n, "up to the end of the mapping")
	assert.ErrorIs(t, err, protocol.ErrNotMapped)
	_, err = a.Write([]byte{2}) // arrives after the writes
	require.NoError(t, err)
	_, err = io.ReadFull(b, make([]byte, 1))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, buffers[1].Bytes()[7:90_007]))
	assert.True(t, bytes.Equal(want[:50], buffers[0].Bytes()[99_950:]))
	_, err = b.WriteAt([]byte{1}, 0)
	assert.ErrorIs(t, err, protocol.ErrNotMapped, "nothing is mapped here")
	_, err = a.WriteAt([]byte{1}, -1)
	assert.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	_, err = a.WriteAt([]byte{1}, 0)
	assert.ErrorIs(t, err, net.ErrClosed)
	assert.ErrorIs(t, b.Map(more, 0), net.ErrClosed)
	c, _ := softPipe(t, Config{})
	assert.ErrorIs(t, c.Map(more, 0), syscall.EINVAL, "only RSocket supports Map")
}

// TestRSocketWaitsForLastAck: after the peer's last message, Close waits until the peer disconnects, which C does when
// that message is acknowledged. If the peer does not disconnect, Close does not wait long.
func TestRSocketWaitsForLastAck(t *testing.T) {
	c := newConn(nil, Config{Protocol: RSocket})
	c.cancel = func() {}
	c.peerFin = protocol.Fin | protocol.Done
	assert.False(t, c.finished())
	c.gone = true
	assert.True(t, c.finished())
	a, b := softPipe(t, Config{Protocol: RSocket, Linger: 10 * time.Minute})
	a.mu.Lock()
	a.want(protocol.Fin | protocol.Done)
	a.mu.Unlock()
	_, err := b.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	select {
	case err := <-closed:
		assert.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Close does not return")
	}
}
