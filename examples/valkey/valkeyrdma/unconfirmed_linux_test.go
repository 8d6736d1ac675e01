// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/unconfirmed"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// TestHostileHost checks that a host that requests connections and never confirms them does not block clients on
// another host.
func TestHostileHost(t *testing.T) {
	fabric := func(address string) *soft.Fabric {
		return rdmatest.NewFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Wire: true,
			Address: netip.MustParseAddr(address)}}})
	}
	here, honest := fabric("127.48.1.1"), fabric("127.48.1.3")
	l, err := (&Config{Backend: here, Buffer: MinBuffer, Backlog: 1, HandshakeTimeout: time.Hour}).Listen(t.Context(),
		"127.48.1.1:0")
	require.NoError(t, err)
	unconfirmed.Requests(t, "127.48.1.2", l.Addr().(stream.Addr).AddrPort, 40, nil)
	const peers = 2
	dialed := make(chan error, peers)
	for range peers {
		go func() {
			c, err := (&Config{Backend: honest, Buffer: MinBuffer, HandshakeTimeout: time.Minute}).Dial(t.Context(),
				l.Addr().String())
			if err == nil {
				err = c.Close()
			}
			dialed <- err
		}()
	}
	for range peers {
		require.NoError(t, <-dialed)
		c, err := l.Accept()
		require.NoError(t, err)
		assert.Equal(t, "127.48.1.3", c.RemoteAddr().(stream.Addr).Addr().String())
		require.NoError(t, c.Close())
	}
	require.NoError(t, l.Close())
}
