// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

func TestConfig(t *testing.T) {
	c, err := Config{}.complete()
	require.NoError(t, err)
	kernel, err := rdma.KernelBackend()
	require.NoError(t, err)
	assert.Equal(t, Config{Backend: kernel, Buffer: DefaultBuffer, HandshakeTimeout: DefaultHandshakeTimeout,
		Linger: DefaultLinger, Heartbeat: DefaultHeartbeat, AckTimeout: DefaultAckTimeout}, c)
	c, err = (&Config{Buffer: protocol.MinBuffer + 1}).complete()
	require.NoError(t, err)
	assert.Equal(t, protocol.MinBuffer+64, c.Buffer, "control messages follow the buffer and stay aligned")
	for _, bad := range []Config{{Buffer: 1}, {Buffer: protocol.MaxBuffer + 1}, {AckTimeout: 32},
		{Protocol: RSocket + 1}, {Linger: -1},
		{BusyPoll: -2}} {
		_, err := bad.complete()
		assert.Error(t, err, "%+v", bad)
	}
	_, err = (&ListenConfig{Backlog: -1}).backlog()
	assert.Error(t, err)
}

func TestDeadline(t *testing.T) {
	expired := make(chan bool, 8)
	d := newDeadline()
	d.expired = func() { expired <- true }
	d.set(time.Now().Add(time.Hour))
	assert.False(t, isDone(d.passed()))
	d.set(time.Now().Add(-time.Second))
	assert.True(t, isDone(d.passed()))
	<-expired
	d.set(time.Now().Add(time.Hour))
	assert.False(t, isDone(d.passed()), "moved again")
	d.set(time.Now().Add(5 * time.Millisecond))
	<-d.passed()
	<-expired
	d.set(time.Time{})
	assert.False(t, isDone(d.passed()))
}
