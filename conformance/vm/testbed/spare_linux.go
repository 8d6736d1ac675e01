// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Spare is a second Soft-RoCE device with its own network device, for tests that set it down or remove it.
type Spare struct {
	Name    string // name of the RDMA device
	Address net.IP

	r      *Testbed
	link   netlink.Link
	soft   *soft.Fabric // the fabric of a software device, which has no link
	remove func() error
}

// Spare creates a second device and removes it when the test ends.
func (r *Testbed) Spare() *Spare {
	r.t.Helper()
	if os.Getenv(wire.EnvGuest) == Soft {
		return r.softSpare()
	}
	link := &netlink.Dummy{LinkAttrs: netlink.NewLinkAttrs()}
	link.Name = "rdma1"
	s := &Spare{Name: "rxe1", link: link, Address: net.IPv4(10, 78, 0, 1), r: r}
	s.remove = sync.OnceValue(func() error { return netlink.RdmaLinkDel(s.Name) })
	require.NoError(r.t, netlink.LinkAdd(link))
	r.t.Cleanup(func() { require.NoError(r.t, netlink.LinkDel(link)) })
	require.NoError(r.t, netlink.LinkSetUp(link))
	s.AddAddress(s.Address)
	require.NoError(r.t, netlink.RdmaLinkAdd(s.Name, "rxe", link.Name))
	r.t.Cleanup(func() { require.NoError(r.t, s.remove()) })
	return s
}

// Netdev returns the network device of the RDMA device, or "".
func (s *Spare) Netdev() string {
	if s.soft != nil {
		return ""
	}
	return s.link.Attrs().Name
}

// AddAddress adds an address to the network device, for which the kernel creates GIDs.
func (s *Spare) AddAddress(ip net.IP) {
	s.r.t.Helper()
	if s.soft != nil {
		address, _ := netip.AddrFromSlice(ip)
		require.NoError(s.r.t, s.soft.AddAddress(s.Name, address))
		return
	}
	require.NoError(s.r.t,
		netlink.AddrAdd(s.link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}))
}

// SetLink sets the network device up or down.
func (s *Spare) SetLink(up bool) error {
	switch {
	case s.soft != nil:
		s.soft.SetLink(s.Name, up)
		return nil
	case up:
		return netlink.LinkSetUp(s.link)
	}
	return netlink.LinkSetDown(s.link)
}

// SetMTU sets the MTU of the network device. It has no effect on a software device.
func (s *Spare) SetMTU(bytes int) error {
	if s.soft != nil {
		return nil
	}
	return netlink.LinkSetMTU(s.link, bytes)
}

// softSpare creates a second software device.
func (r *Testbed) softSpare() *Spare {
	f, err := soft.Default()
	require.NoError(r.t, err)
	address := netip.AddrFrom4([4]byte{10, 78, 0, 1})
	s := &Spare{Name: "spare", Address: address.AsSlice(), soft: f, r: r}
	require.NoError(r.t, f.AddDevice(soft.DeviceOptions{Name: s.Name, Address: address}))
	s.remove = func() error { f.RemoveDevice(s.Name); return nil }
	r.t.Cleanup(func() { require.NoError(r.t, s.remove()) })
	return s
}

// Remove removes the RDMA device. It returns when no process has the device open. A second call has no effect.
func (s *Spare) Remove() error { return s.remove() }

// Open opens the device.
func (s *Spare) Open() *Testbed { return s.OpenFor(s.r.t) }

// OpenFor opens the device for a subtest, at whose end it is closed.
func (s *Spare) OpenFor(t testing.TB) *Testbed {
	t.Helper()
	return open(t, s.Name, s.Address)
}
