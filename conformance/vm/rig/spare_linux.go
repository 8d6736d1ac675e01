package rig

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// Spare is a second Soft-RoCE device with a network device of its own, for tests that take it down or away.
type Spare struct {
	Name    string // of the RDMA device
	Link    netlink.Link
	Address net.IP

	r      *Rig
	remove func() error
}

// Spare makes a second device, which is removed when the test ends.
func (r *Rig) Spare() *Spare {
	r.t.Helper()
	link := &netlink.Dummy{LinkAttrs: netlink.NewLinkAttrs()}
	link.Name = "rdma1"
	s := &Spare{Name: "rxe1", Link: link, Address: net.IPv4(10, 78, 0, 1), r: r}
	s.remove = sync.OnceValue(func() error { return netlink.RdmaLinkDel(s.Name) })
	require.NoError(r.t, netlink.LinkAdd(link))
	r.t.Cleanup(func() { require.NoError(r.t, netlink.LinkDel(link)) })
	require.NoError(r.t, netlink.LinkSetUp(link))
	s.AddAddress(s.Address)
	require.NoError(r.t, netlink.RdmaLinkAdd(s.Name, "rxe", link.Name))
	r.t.Cleanup(func() { require.NoError(r.t, s.remove()) })
	return s
}

// AddAddress gives the network device one more address, of which the kernel makes GIDs.
func (s *Spare) AddAddress(ip net.IP) {
	s.r.t.Helper()
	require.NoError(s.r.t, netlink.AddrAdd(s.Link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}))
}

// Remove takes the RDMA device away; a second call does nothing. It returns when nobody has the device open.
func (s *Spare) Remove() error { return s.remove() }

// Open opens the device.
func (s *Spare) Open() *Rig { return s.OpenFor(s.r.t) }

// OpenFor opens the device for a test of its own, at whose end it is closed.
func (s *Spare) OpenFor(t testing.TB) *Rig {
	t.Helper()
	return open(t, s.Name, s.Address)
}
