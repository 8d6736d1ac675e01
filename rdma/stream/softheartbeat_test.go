// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// failsSoon checks that a Read fails because the peer does not answer.
func failsSoon(t *testing.T, c *Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := c.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	var timeout interface{ Timeout() bool }
	require.ErrorAs(t, err, &timeout)
	assert.NotErrorIs(t, err, syscall.EAGAIN)
}

// TestSoftHeartbeatByDefault: with the default configuration, a program that only reads from an accepted connection
// detects that its peer has vanished.
func TestSoftHeartbeatByDefault(t *testing.T) {
	defer func(before time.Duration) { defaultHeartbeat = before }(defaultHeartbeat)
	assert.Equal(t, DefaultHeartbeat, defaultHeartbeat)
	defaultHeartbeat = 20 * time.Millisecond
	for _, p := range []Protocol{Stream, RSocket} {
		f := newFabric(t, soft.Options{})
		config := Config{Backend: f, Protocol: p, Buffer: protocol.MinBuffer, AckTimeout: 8, Linger: time.Millisecond}
		l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
		keep(t, l, err)
		silent := config
		silent.Heartbeat = -1
		c, err := dialer(silent).Dial(soon(t), l.Addr().String())
		require.NoError(t, err)
		server, err := l.AcceptRDMA(soon(t))
		require.NoError(t, err)
		f.SetLink("soft0", false)
		failsSoon(t, server)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		_, err = c.Read(make([]byte, 1))
		assert.NotErrorIs(t, err, syscall.ETIMEDOUT, "no heartbeat")
		c.Close()
		server.Close()
	}
}

// TestSoftHostileHeartbeat: a vanished peer is detected even if it never handled a heartbeat.
func TestSoftHostileHeartbeat(t *testing.T) {
	f := newFabric(t, soft.Options{})
	config := Config{Backend: f, Buffer: protocol.MinBuffer, AckTimeout: 8, Linger: time.Millisecond,
		Heartbeat: time.Millisecond}
	l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	id, ch := resolved(t, f, l.Addr().(Addr).AddrPort)
	qp, err := id.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_RC, Cap: ibv.QPCap{MaxSendWR: 1,
		MaxRecvWR: 2 * protocol.StreamDepth, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
	require.NoError(t, err)
	mr, err := id.RegMsgs(make([]byte, 256))
	require.NoError(t, err)
	for i := range uint64(2 * protocol.StreamDepth) {
		require.NoError(t, id.PostRecv(i, mr.Bytes(), mr))
	}
	require.NoError(t, id.Connect(soon(t), nil, protocol.StreamHello(protocol.MinBuffer)))
	e, err := ch.Event(soon(t))
	require.NoError(t, err)
	require.Equal(t, rdmacm.CM_EVENT_ESTABLISHED, e.Type)
	server, err := l.AcceptRDMA(soon(t))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddr("127.0.0.1"), server.RemoteAddr().(Addr).Addr())
	time.Sleep(4 * protocol.StreamDepth * config.Heartbeat) // all receives could be used up
	f.SetLink("soft0", false)
	failsSoon(t, server)
	server.Close()
	require.NoError(t, qp.Close())
	require.NoError(t, mr.Close())
}
