// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// softPairs returns both sides of n streams on one software device.
func softPairs(t *testing.T, config Config, n int) (clients, servers []*Conn) {
	t.Helper()
	config.Backend = newFabric(t, soft.Options{})
	l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	for range n {
		dialled := make(chan *Conn, 1)
		go func() {
			c, err := dialer(config).Dial(soon(t), l.Addr().String())
			assert.NoError(t, err)
			dialled <- c
		}()
		server, err := l.AcceptRDMA(soon(t))
		require.NoError(t, err)
		t.Cleanup(func() { server.Close() })
		client := <-dialled
		require.NotNil(t, client)
		t.Cleanup(func() { client.Close() })
		clients, servers = append(clients, client), append(servers, server)
	}
	return clients, servers
}

// TestSoftSlowReader: a stream that is not read does not block another stream of the same queue.
func TestSoftSlowReader(t *testing.T) {
	clients, servers := softPairs(t, Config{Buffer: protocol.MinBuffer}, 2)
	require.Same(t, clients[0].poller, servers[1].poller)
	var writing sync.WaitGroup
	defer writing.Wait()
	full := bytes.Repeat([]byte{7}, 1<<20)
	writing.Go(func() {
		_, err := clients[0].Write(full)
		assert.NoError(t, err)
	})
	require.Eventually(t, func() bool {
		servers[0].mu.Lock()
		defer servers[0].mu.Unlock()
		return servers[0].protocol.Unread() == protocol.MinBuffer
	}, tooLong, time.Millisecond)
	require.NoError(t, clients[1].SetDeadline(time.Now().Add(tooLong)))
	writing.Go(func() { io.Copy(struct{ io.Writer }{servers[1]}, struct{ io.Reader }{servers[1]}) })
	p := make([]byte, 3*protocol.MinBuffer)
	for range 100 {
		_, err := clients[1].Write(p[:64])
		require.NoError(t, err)
		_, err = io.ReadFull(clients[1], p[:64])
		require.NoError(t, err)
	}
	require.NoError(t, clients[1].CloseWrite())
	got := make([]byte, len(full))
	_, err := io.ReadFull(servers[0], got)
	require.NoError(t, err)
	assert.Equal(t, full, got)
}

// TestSoftLargeWrites: both sides write much data concurrently, in pieces of many sizes, and then close. Everything
// arrives, and some pieces were fetched.
func TestSoftLargeWrites(t *testing.T) {
	clients, servers := softPairs(t, Config{}, 1)
	sent := make([]byte, 9_000_001)
	rand.NewChaCha8([32]byte{1}).Read(sent)
	sizes := []int{1 << 20, 70_000, 1, 3 << 20, 1 << 16, 40_000, 200_000}
	var all sync.WaitGroup
	for _, c := range []*Conn{clients[0], servers[0]} {
		all.Go(func() {
			for i, rest := 0, sent; len(rest) > 0; i++ {
				n, err := c.Write(rest[:min(len(rest), sizes[i%len(sizes)])])
				if !assert.NoError(t, err) {
					return
				}
				rest = rest[n:]
			}
			assert.NoError(t, c.CloseWrite())
		})
		all.Go(func() {
			got, err := io.ReadAll(struct{ io.Reader }{c})
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(sent, got), "%d bytes of %d", len(got), len(sent))
			c.mu.Lock()
			defer c.mu.Unlock()
			assert.NotZero(t, c.protocol.(*protocol.Stream).Fetched)
		})
	}
	all.Wait()
}

// TestSoftCloseAfterLargeWrite: Close waits until the peer has fetched the offered data.
func TestSoftCloseAfterLargeWrite(t *testing.T) {
	clients, servers := softPairs(t, Config{}, 8)
	sent := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{2}).Read(sent)
	for i, c := range clients {
		_, err := c.Write(sent)
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		if i%2 == 0 {
			require.NoError(t, <-closed)
		}
		got, err := io.ReadAll(struct{ io.Reader }{servers[i]})
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, got))
		if i%2 != 0 {
			require.NoError(t, <-closed)
		}
	}
}

// TestSoftStreamsOfOneQueue: while streams of a queue are opened and closed, each delivers its own bytes.
func TestSoftStreamsOfOneQueue(t *testing.T) {
	config := Config{Backend: newFabric(t, soft.Options{}), Buffer: protocol.MinBuffer,
		HandshakeTimeout: tooLong}
	l, err := listening(config, 32).Listen(soon(t), "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptRDMA(context.Background())
			if err != nil {
				return
			}
			all.Go(func() {
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
				assert.NoError(t, c.Close())
			})
		}
	})
	var clients sync.WaitGroup
	for one := range 8 {
		clients.Go(func() {
			for round := range 15 {
				c, err := dialer(config).Dial(soon(t), l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				p := binary.LittleEndian.AppendUint64(nil, uint64(one)<<32|uint64(round))
				p = bytes.Repeat(p, 1+round*protocol.MinBuffer/32)
				go c.Write(p)
				got := make([]byte, len(p))
				_, err = io.ReadFull(c, got)
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(p, got), "bytes of another stream")
				assert.NoError(t, c.Close())
			}
		})
	}
	clients.Wait()
	require.NoError(t, l.Close())
	all.Wait()
}

// TestPollerKeys: a stream never gets the key of an open stream, nor that of a recently closed one.
func TestPollerKeys(t *testing.T) {
	r := &poller{conns: map[uint32]*Conn{}, stop: func() {}, last: protocol.MostKeys - 2}
	r.conns[0] = new(Conn) // so that no background goroutine starts
	var given []uint32
	for range 4 {
		given = append(given, r.add(new(Conn)))
	}
	assert.Equal(t, []uint32{protocol.MostKeys - 1, protocol.MostKeys, 1, 2}, given)
	r.remove(1)
	assert.EqualValues(t, 3, r.add(new(Conn)))
	assert.Nil(t, r.find(1))
}

// TestPollerEndsStreams: when a queue fails, its streams fail, and later streams use another queue.
func TestPollerEndsStreams(t *testing.T) {
	clients, servers := softPairs(t, Config{Buffer: protocol.MinBuffer}, 2)
	r := clients[0].poller
	r.fail(io.ErrClosedPipe)
	for _, c := range append(clients, servers...) {
		_, err := c.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.ErrClosedPipe)
	}
	other, err := clients[0].shared.poller(126, waitPolicy{})
	require.NoError(t, err)
	assert.NotSame(t, r, other)
	require.NoError(t, clients[0].shared.leavePoller(other, 126, waitPolicy{}))
}
