// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// softPipe returns the two sides of a stream on a software device.
func softPipe(t *testing.T, config Config) (client, server *Conn) {
	t.Helper()
	config.Backend = newFabric(t, soft.Options{})
	if config.HandshakeTimeout == 0 {
		config.HandshakeTimeout = tooLong
	}
	l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	dialed := make(chan error, 1)
	go func() {
		var err error
		client, err = dialer(config).Dial(soon(t), l.Addr().String())
		dialed <- err
	}()
	server, err = l.AcceptRDMA(soon(t))
	require.NoError(t, err)
	require.NoError(t, <-dialed)
	t.Cleanup(func() { client.Close(); server.Close() })
	for _, c := range []*Conn{client, server} {
		require.NoError(t, c.SetDeadline(time.Now().Add(tooLong)))
	}
	return client, server
}

// TestSoftAcknowledgements: a side acknowledges groups of received messages. If it acknowledged each, two sides would
// acknowledge each other forever.
func TestSoftAcknowledgements(t *testing.T) {
	a, b := softPipe(t, Config{})
	const many = 20 * protocol.StreamDepth
	one := make([]byte, 1)
	for range many {
		_, err := a.Write(one)
		require.NoError(t, err)
		_, err = io.ReadFull(b, one)
		require.NoError(t, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.LessOrEqual(t, b.link.Messages, uint64(many/(protocol.StreamDepth/2)+1))
	assert.NotZero(t, b.link.Messages)
}

// TestSoftPeerDisconnectsEarly: if the peer disconnects before it sends its end of data, Read reports truncation.
func TestSoftPeerDisconnectsEarly(t *testing.T) {
	a, b := softPipe(t, Config{Linger: time.Second})
	_, err := a.Write([]byte("some"))
	require.NoError(t, err)
	require.NoError(t, a.id.Disconnect(soon(t)))
	got, err := io.ReadAll(b)
	assert.Equal(t, "some", string(got))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = b.Write([]byte("x"))
	assert.Error(t, err)
}

// TestCloseWaitsForEndOfData: a connection has finished when the ends of data of both sides have arrived, not when they
// are posted.
func TestCloseWaitsForEndOfData(t *testing.T) {
	c := newConn(nil, Config{})
	c.cancel = func() {}
	c.finSent, c.finSeq, c.peerFin, c.link.Completed = protocol.Fin|protocol.Done, 7, protocol.Fin, 7
	assert.True(t, c.finished())
	c.link.Completed = 6
	assert.False(t, c.finished())
	c.link.Completed, c.peerFin = 7, 0
	assert.False(t, c.finished(), "the peer has not sent its end of data")
	c.peerFin, c.finSent = protocol.Fin, protocol.Fin
	assert.False(t, c.finished(), "the end of data was posted but not completed")
}

// TestSoftConfigApplied: queue pairs and packets have the configured values.
func TestSoftConfigApplied(t *testing.T) {
	a, b := softPipe(t, Config{AckTimeout: 9, ToS: 0x20})
	for _, c := range []*Conn{a, b} {
		attr, _, err := c.link.QP.Query(ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_AV)
		require.NoError(t, err)
		assert.EqualValues(t, 6, attr.RetryCnt, "7 is infinite on Soft-RoCE")
		assert.EqualValues(t, 0x20, attr.AHAttr.GRH.TrafficClass)
	}
	attr, _, err := a.link.QP.Query(ibv.QP_TIMEOUT)
	require.NoError(t, err)
	assert.EqualValues(t, 9, attr.Timeout)
	assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
	assert.Equal(t, b.LocalAddr(), a.RemoteAddr())
	assert.NotEqual(t, a.LocalAddr(), b.LocalAddr())
}

// TestSoftListenerNotBlocked: a peer that never sends the RTU occupies the backlog only for HandshakeTimeout.
func TestSoftListenerNotBlocked(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := listening(Config{Backend: f, Buffer: protocol.MinBuffer, HandshakeTimeout: 50 * time.Millisecond},
		1).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	id, _ := resolved(t, f, l.local.(Addr).AddrPort)
	// The client never handles the reply.
	require.NoError(t,
		id.Connect(soon(t), &rdmacm.ConnParam{QPNum: 99}, protocol.StreamHello(protocol.MinBuffer)))
	ctx, cancel := context.WithCancel(soon(t))
	accepted := make(chan error, 1)
	var accepts sync.WaitGroup
	defer accepts.Wait()
	defer cancel()
	accepts.Go(func() { // accept all: a waiting connection would occupy the only place
		for {
			c, err := l.AcceptRDMA(ctx)
			select {
			case accepted <- err:
			default:
			}
			if err != nil {
				return
			}
			c.Close()
		}
	})
	for over := false; !over; { // 50 ms may be too short on a busy machine
		c, err := dialer(Config{Backend: f, Buffer: protocol.MinBuffer, HandshakeTimeout: tooLong}).Dial(ctx,
			l.Addr().String())
		if err == nil {
			c.Close()
		}
		require.NoError(t, ctx.Err(), "the place is still occupied")
		select {
		case err := <-accepted:
			require.NoError(t, err)
			over = true
		default:
		}
	}
}

// TestSoftAcceptsInParallel: peers that never confirm the reply do not delay other peers.
func TestSoftAcceptsInParallel(t *testing.T) {
	f := newFabric(t, soft.Options{})
	const slow = 3
	config := Config{Backend: f, Buffer: protocol.MinBuffer, HandshakeTimeout: tooLong}
	l, err := listening(config, slow+1).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	for i := range uint32(slow) {
		id, _ := resolved(t, f, l.local.(Addr).AddrPort)
		require.NoError(t,
			id.Connect(soon(t), &rdmacm.ConnParam{QPNum: 99 + i}, protocol.StreamHello(protocol.MinBuffer)))
	}
	require.Eventually(t, func() bool { return l.places.Taken() >= slow }, 10*time.Second, time.Millisecond,
		"all requests are being answered")
	accepted := make(chan error, 1)
	go func() {
		c, err := l.AcceptRDMA(soon(t))
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	began := time.Now()
	c, err := dialer(config).Dial(soon(t), l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, <-accepted)
	assert.Less(t, time.Since(began), config.HandshakeTimeout/2)
	assert.GreaterOrEqual(t, l.places.Taken(), slow, "the slow peers are still connecting")
}

// TestSoftListenerReusesMemory: successive connections of a listener share a queue and reuse memory, whether it listens
// at one address or at all. After Close, or when the device is removed, everything is released.
func TestSoftListenerReusesMemory(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", ":0", "0.0.0.0:0"} {
		f := newFabric(t, soft.Options{})
		config := Config{Backend: f, Buffer: protocol.MinBuffer}
		l, err := listening(config).Listen(soon(t), at)
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		used := map[*poller]bool{}
		for range 3 {
			accepted := make(chan *Conn, 1)
			go func() {
				c, err := l.AcceptRDMA(soon(t))
				assert.NoError(t, err)
				accepted <- c
			}()
			a, err := dialer(config).Dial(soon(t), "127.0.0.1:"+port)
			require.NoError(t, err)
			b := <-accepted
			used[b.poller] = true
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		}
		assert.Len(t, used, 1, at)
		if at == ":0" {
			require.True(t, f.RemoveDevice("soft0"))
			assert.Eventually(t, func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.holders) == 0
			}, 10*time.Second, time.Millisecond)
		}
		require.NoError(t, l.Close())
		assert.Empty(t, f.Resources(), at)
	}
}

// TestSoftListenerDeviceRemoved: Accept returns the reason why no more connections can arrive.
func TestSoftListenerDeviceRemoved(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := listening(Config{Backend: f}).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	require.True(t, f.RemoveDevice("soft0"))
	for range 2 {
		_, err = l.AcceptRDMA(soon(t))
		assert.ErrorIs(t, err, syscall.ENODEV)
		assert.NotErrorIs(t, err, net.ErrClosed)
	}
}

// TestSoftReadyForLongWrite: Ready reports room only if a long Write would make progress, even if this side's buffer is
// small and the peer's is large. Otherwise a polling program would spin.
func TestSoftReadyForLongWrite(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := listening(Config{Backend: f, Buffer: 1 << 20}).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	client, err := dialer(Config{Backend: f, Buffer: 4 << 10, Linger: time.Millisecond}).Dial(soon(t),
		l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	server, err := l.AcceptRDMA(soon(t))
	keep(t, server, err)
	_, err = client.Write(make([]byte, 900<<10)) // leaves less than a quarter, too little for a long write
	require.NoError(t, err)
	require.Eventually(t, func() bool { // until staging is free
		client.Poll()
		client.mu.Lock()
		defer client.mu.Unlock()
		return client.protocol.Room(1, false) > 0
	}, tooLong, time.Millisecond)
	_, err = client.TryWrite(make([]byte, 900<<10))
	require.ErrorIs(t, err, syscall.EAGAIN)
	assert.False(t, client.Ready().Write)
	_, err = io.ReadFull(server, make([]byte, 900<<10))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		client.Poll()
		return client.Ready().Write
	}, tooLong, time.Millisecond)
	n, err := client.TryWrite(make([]byte, 900<<10))
	require.NoError(t, err)
	assert.NotZero(t, n)
}

// TestSoftReceivesSuffice: receives that are reported to the peer as free are posted.
func TestSoftReceivesSuffice(t *testing.T) {
	near, _ := softPipe(t, Config{})
	write := func(n int) { // and handles all completions
		for range n {
			_, err := near.Write([]byte{1})
			require.NoError(t, err)
		}
		near.Poll()
	}
	for first := range protocol.StreamDepth / 2 {
		write(first)
		write(protocol.StreamDepth/2 - first) // the other side reports
		write(protocol.StreamDepth - 2)
	}
	counters := near.config.Backend.(*soft.Fabric).HWCounters("soft0")
	assert.Zero(t, counters["send_rnr_err"], counters)
}
