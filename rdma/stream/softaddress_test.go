// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// serve accepts streams and sends its local address on each.
func serve(t *testing.T, f *soft.Fabric, at string) *Listener {
	t.Helper()
	l, err := listening(Config{Backend: f, Buffer: 8 << 10}).Listen(context.Background(), at)
	var served sync.WaitGroup
	t.Cleanup(served.Wait)
	keep(t, l, err)
	served.Go(func() {
		for {
			c, err := l.AcceptRDMA(context.Background())
			if err != nil {
				return
			}
			c.Write([]byte(c.LocalAddr().String()))
			c.Close()
		}
	})
	return l
}

// TestSoftAddressesReach checks which device each address leads to.
func TestSoftAddressesReach(t *testing.T) {
	f := newFabric(t, soft.Options{})
	wildcard := serve(t, f, ":7471")
	config := Config{Backend: f, Buffer: 8 << 10}
	ask := func(at string) (string, error) {
		c, err := dialer(config).Dial(soon(t), at)
		if err != nil {
			return "", err
		}
		defer c.Close()
		got := make([]byte, 64)
		n, err := c.Read(got)
		return string(got[:n]), err
	}
	for _, at := range []string{"127.0.0.1:7471", "127.0.0.2:7471", "[::1]:7471"} {
		got, err := ask(at)
		require.NoError(t, err)
		assert.Equal(t, at, got)
	}
	got, err := ask(wildcard.Addr().String()) // [::]
	require.NoError(t, err)
	assert.Equal(t, "[::1]:7471", got)
	_, err = ask("127.0.0.1:7472")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = dialer(Config{Backend: newFabric(t, soft.Options{})}).Dial(soon(t), "127.0.0.1:7471")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "another fabric")

	own := newFabric(t,
		soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr("192.0.2.1")},
			{Address: netip.MustParseAddr("2001:db8::1")}}})
	config.Backend = own
	serve(t, own, ":7471")
	for at, to := range map[string]string{"192.0.2.1:7471": "192.0.2.1:7471",
		"[2001:db8::1]:7471": "[2001:db8::1]:7471", "127.0.0.1:7471": "127.0.0.1:7471"} {
		got, err := ask(at)
		require.NoError(t, err, at)
		assert.Equal(t, to, got)
	}
}

// TestSoftDialUnused: the deadline of Dial limits resolving an address that does not answer.
func TestSoftDialUnused(t *testing.T) {
	f := newFabric(t, soft.Options{})
	f.SetLink("soft1", false)
	start := time.Now()
	_, err := dialer(Config{Backend: f, HandshakeTimeout: 50 * time.Millisecond}).Dial(soon(t), "127.0.0.2:1")
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	assert.ErrorContains(t, err, "no answer from the address: check that its host and link are up")
	assert.Less(t, time.Since(start), 3*time.Second)
}

// TestSoftSourceInUse: an error about the source port names the port and its owner, as for Bind.
func TestSoftSourceInUse(t *testing.T) {
	f := newFabric(t, soft.Options{})
	l, err := listening(Config{Backend: f}).Listen(soon(t), "127.0.0.2:7471")
	keep(t, l, err)
	source := netip.MustParseAddrPort("127.0.0.1:7000")
	owner, err := cm.CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, owner, err)
	require.NoError(t, owner.Bind(source))
	const names = "source 127.0.0.1:7000: used by an ID that is bound to 127.0.0.1:7000 on soft0"
	_, err = (&Dialer{Config: Config{Backend: f}, LocalAddr: source}).Dial(soon(t), "127.0.0.2:7471")
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, names)
	assert.ErrorContains(t, err, "127.0.0.2:7471")
	_, err = (&Dialer{Config: Config{Backend: f}, LocalAddr: netip.MustParseAddrPort("192.0.2.1:0")}).Dial(soon(t),
		"127.0.0.2:7471")
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	assert.ErrorContains(t, err, "source 192.0.2.1:0: not an address of this machine")
}

// TestDialContext: the network selects the address family, as with net.Dialer.
func TestDialContext(t *testing.T) {
	f := newFabric(t, soft.Options{})
	at := serve(t, f, ":7471")
	_, port, err := net.SplitHostPort(at.Addr().String())
	require.NoError(t, err)
	d := dialer(Config{Backend: f, Buffer: 8 << 10})
	for network, hosts := range map[string]map[string]string{
		"tcp":   {"127.0.0.1": "127.0.0.1", "::1": "::1", "": "::1"},
		"tcp4":  {"127.0.0.1": "127.0.0.1", "": "127.0.0.1", "soft1": "127.0.0.2"},
		"rdma6": {"::1": "::1", "": "::1"},
	} {
		for host, want := range hosts {
			c, err := d.DialContext(soon(t), network, net.JoinHostPort(host, port))
			require.NoError(t, err, "%s %q", network, host)
			assert.Equal(t, want, c.RemoteAddr().(Addr).Addr().String(), "%s %q", network, host)
			assert.NoError(t, c.Close())
		}
	}
	for network, host := range map[string]string{"tcp4": "::1", "rdma6": "127.0.0.1", "udp": "127.0.0.1"} {
		c, err := d.DialContext(soon(t), network, net.JoinHostPort(host, port))
		assert.Error(t, err, "%s %q", network, host)
		assert.Nil(t, c)
	}
}
