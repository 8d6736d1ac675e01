// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// Bond is a Soft-RoCE device on a bond of two network devices. Failover changes the bond's Ethernet address.
type Bond struct {
	Address netip.Addr

	t testing.TB
}

const (
	bondDevice = "rxe2"
	bondLink   = "rdma2"
)

var slaves = [...]string{"slave0", "slave1"}

// NewBond creates a bond and a Soft-RoCE device on it. The caller must call Remove before the test ends; the network
// devices are then removed.
func NewBond(t testing.TB) *Bond {
	t.Helper()
	b := &Bond{Address: netip.AddrFrom4([4]byte{10, 79, 0, 1}), t: t}
	link := netlink.NewLinkBond(netlink.LinkAttrs{Name: bondLink})
	link.Mode, link.FailOverMac, link.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, netlink.BOND_FAIL_OVER_MAC_ACTIVE, 100
	require.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() { require.NoError(t, netlink.LinkDel(link)) })
	for _, name := range slaves {
		slave := &netlink.Dummy{LinkAttrs: netlink.NewLinkAttrs()}
		slave.Name = name
		require.NoError(t, netlink.LinkAdd(slave))
		t.Cleanup(func() { netlink.LinkDel(slave) })
		require.NoError(t, netlink.LinkSetMaster(slave, link))
	}
	require.NoError(t, netlink.LinkSetUp(link))
	own := &net.IPNet{IP: b.Address.AsSlice(), Mask: net.CIDRMask(24, 32)}
	require.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: own}))
	require.NoError(t, netlink.RdmaLinkAdd(bondDevice, "rxe", bondLink))
	return b
}

// FailOver activates the second network device.
func (b *Bond) FailOver() {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile("/sys/class/net/"+bondLink+"/bonding/active_slave", []byte(slaves[1]), 0))
}

// Remove removes the RDMA device. It blocks until no process has the device open.
func (b *Bond) Remove() error { return netlink.RdmaLinkDel(bondDevice) }
