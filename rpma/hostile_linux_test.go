// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/unconfirmed"
	"github.com/goverbs/goverbs/rdma/soft"
)

// peerAt returns a peer at an address of this host.
func peerAt(t *testing.T, address string) *Peer {
	t.Helper()
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr(address), Wire: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	d, err := FindDeviceOn(timeout(t), f, Local, address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	p, err := NewPeer(d, PeerOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// TestHostileHost checks that a host that sends connection requests and never confirms them does not delay other hosts.
func TestHostileHost(t *testing.T) {
	defer func(d time.Duration) { handshakeTimeout = d }(handshakeTimeout)
	handshakeTimeout = time.Hour
	here, honest := peerAt(t, "127.45.1.1"), peerAt(t, "127.45.1.3")
	ep, err := here.Listen(t.Context(), "127.45.1.1:0")
	require.NoError(t, err)
	unconfirmed.Requests(t, "127.45.1.2", ep.Addr(), 40, nil)
	const peers = 2
	connected := make(chan error, peers)
	for range peers {
		go func() {
			c, err := honest.Connect(timeout(t), ep.Addr().String(), nil, nil)
			if err == nil {
				err = c.Close()
			}
			connected <- err
		}()
	}
	for range peers {
		c, err := ep.Accept(timeout(t), nil, nil)
		require.NoError(t, err)
		require.NoError(t, <-connected)
		require.NoError(t, c.Close())
	}
	require.NoError(t, ep.Close()) // does not wait for the hostile host
}
