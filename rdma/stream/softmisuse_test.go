// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// TestSoftDialGivesUp: if the context ends during any step, the error is a timeout as in package net, or a
// cancellation.
func TestSoftDialGivesUp(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := cm.CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, l, err)
	require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.1:7471")))
	require.NoError(t, l.Listen(8)) // and requests are not answered
	f.SetLink("soft1", false)
	for _, at := range []string{"127.0.0.1:7471", "127.0.0.2:1"} {
		for _, after := range []time.Duration{-time.Second, 20 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(context.Background(), after)
			defer cancel()
			_, err := dialer(Config{Backend: f, Buffer: protocol.MinBuffer}).Dial(ctx, at)
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout(), "%v", err)

			ctx, cancel = context.WithCancel(context.Background())
			defer time.AfterFunc(max(after, 0), cancel).Stop()
			_, err = dialer(Config{Backend: f, Buffer: protocol.MinBuffer}).Dial(ctx, at)
			assert.ErrorIs(t, err, context.Canceled)
			require.ErrorAs(t, err, &timeout)
			assert.False(t, timeout.Timeout())
		}
	}
}

// TestWriteDuringClose: a Write that Close interrupts returns an error that does not blame the peer.
func TestWriteDuringClose(t *testing.T) {
	c := newConn(nil, Config{})
	c.finWanted = protocol.Fin | protocol.Done
	assert.ErrorIs(t, c.writeErr(), syscall.EPIPE)
	c.err = syscall.ECONNRESET
	close(c.closed)
	assert.ErrorIs(t, c.writeErr(), net.ErrClosed)
}
