// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// TestSoftHostileHost: a host that sends connection requests and never confirms them does not keep two peers on another
// host from connecting.
func TestSoftHostileHost(t *testing.T) {
	fabric := func(address string) *soft.Fabric {
		return newFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Wire: true,
			Address: netip.MustParseAddr(address)}}})
	}
	here, hostile, honest := fabric("127.0.33.1"), fabric("127.0.33.2"), fabric("127.0.33.3")
	l, err := listening(Config{Backend: here, Buffer: protocol.MinBuffer, HandshakeTimeout: tooLong}, 1).Listen(
		soon(t), "127.0.33.1:0")
	keep(t, l, err)
	ch, err := cm.CreateEventChannelOn(hostile)
	keep(t, ch, err)
	for i := range uint32(40) {
		id, err := ch.CreateID(rdmacm.PS_TCP)
		keep(t, id, err)
		require.NoError(t, id.ResolveAddr(soon(t), netip.AddrPort{}, l.local.(Addr).AddrPort, time.Second))
		for {
			e, err := ch.Event(soon(t))
			require.NoError(t, err)
			if e.Type == rdmacm.CM_EVENT_ADDR_RESOLVED {
				break
			}
		}
		require.NoError(t, id.ResolveRoute(soon(t), time.Second))
		for {
			e, err := ch.Event(soon(t))
			require.NoError(t, err)
			if e.Type == rdmacm.CM_EVENT_ROUTE_RESOLVED {
				break
			}
		}
		require.NoError(t, id.Connect(soon(t), &rdmacm.ConnParam{QPNum: 99 + i},
			protocol.StreamHello(protocol.MinBuffer)))
	}
	const peers = 2
	dialed := make(chan error, peers)
	for range peers {
		go func() {
			c, err := dialer(Config{Backend: honest, Buffer: protocol.MinBuffer,
				HandshakeTimeout: 30 * time.Second}).Dial(
				soon(t), l.Addr().String())
			if err == nil {
				err = c.Close()
			}
			dialed <- err
		}()
	}
	for range peers {
		c, err := l.AcceptRDMA(soon(t))
		require.NoError(t, err)
		assert.Equal(t, "127.0.33.3", c.RemoteAddr().(Addr).Addr().String())
		require.NoError(t, c.Close())
		require.NoError(t, <-dialed)
	}
}
