// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
)

// linkLocal returns the link-local address of the guest's network device, with its zone.
func linkLocal(t *testing.T) netip.Addr {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft {
		t.Skip("rdma/soft tests this for the software device")
	}
	netdev, err := net.InterfaceByName(os.Getenv(wire.EnvNetdev))
	require.NoError(t, err)
	addresses, err := netdev.Addrs()
	require.NoError(t, err)
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			return prefix.Addr().WithZone(netdev.Name)
		}
	}
	require.Fail(t, "no link-local address")
	return netip.Addr{}
}

// TestLinkLocal checks that a link-local address keeps its zone.
func TestLinkLocal(t *testing.T) {
	at := linkLocal(t)
	bind := func(a netip.Addr) (*cm.ID, error) {
		id, err := createID(rdmacm.PS_TCP)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, id.Close()) })
		return id, id.Bind(netip.AddrPortFrom(a, 0))
	}
	resolve := func(a netip.Addr) (*cm.ID, error) {
		id, err := createID(rdmacm.PS_TCP)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, id.Close()) })
		return id, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, netip.AddrPortFrom(a, 7471), time.Second)
	}
	_, err := bind(at.WithZone(""))
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "a link-local address needs an interface")
	_, err = bind(at.WithZone("99"))
	assert.ErrorIs(t, err, syscall.ENODEV)
	if testbed.Kernel(t) == "6.1" { // 7 accepts any existing interface
		_, err = bind(at.WithZone("lo"))
		assert.ErrorIs(t, err, syscall.ENODEV)
	}
	id, err := bind(at)
	require.NoError(t, err)
	assert.Equal(t, at, id.LocalAddr().Addr())
	for _, zone := range []string{"lo", "99"} {
		_, err = resolve(at.WithZone(zone))
		assert.ErrorIs(t, err, syscall.ENETUNREACH, zone)
	}
	id, err = resolve(at)
	require.NoError(t, err)
	assert.Equal(t, at, id.LocalAddr().Addr())
	assert.Equal(t, at, id.PeerAddr().Addr())
	_, err = resolve(at.WithZone(""))
	assert.NoError(t, err, "an address of this machine needs no zone")
}
