// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// linkLocals creates a veth pair with link-local addresses and a device on each end, each in a new fabric.
func linkLocals(t *testing.T) (local, remote *soft.Fabric) {
	t.Helper()
	cabled(t)
	fabrics := []*soft.Fabric{}
	for i, name := range []string{"near0", "far0"} {
		link, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(link, &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{
			IP: net.ParseIP([]string{"fe80::1", "fe80::2"}[i]), Mask: net.CIDRMask(64, 128)}}))
		require.NoError(t, netlink.LinkSetUp(link))
	}
	for _, at := range []string{"fe80::1%near0", "fe80::2%far0"} {
		f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr(at), Wire: true}}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		fabrics = append(fabrics, f)
	}
	return fabrics[0], fabrics[1]
}

// TestLinkLocal: a link-local address requires its zone, reaches no device of another interface, and is printed with
// its zone.
func TestLinkLocal(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	near, far := linkLocals(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	newID := func() *cm.ID {
		id, err := cm.CreateIDOn(near, rdmacm.PS_TCP)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, id.Close()) })
		return id
	}
	for at, want := range map[string]syscall.Errno{"[fe80::1]:0": syscall.EINVAL, "[fe80::1%lo]:0": syscall.ENODEV,
		"[fe80::1%far0]:0": syscall.ENODEV, "[fe80::9%near0]:0": syscall.EADDRNOTAVAIL, "[fe80::9]:0": syscall.EINVAL} {
		id := newID()
		err := id.Bind(netip.MustParseAddrPort(at))
		assert.ErrorIs(t, err, want, at)
		assert.ErrorContains(t, err, at)
		assert.False(t, id.LocalAddr().IsValid(), at)
	}
	for from, want := range map[string]string{"[fe80::1]:0": "needs an interface",
		"[fe80::1%lo]:0": "the address's network interface has no RDMA device"} {
		err := newID().ResolveAddr(ctx, netip.MustParseAddrPort(from), netip.MustParseAddrPort("[fe80::2%near0]:7"),
			time.Second)
		assert.ErrorContains(t, err, "source "+from)
		assert.ErrorContains(t, err, want)
	}
	id := newID()
	require.NoError(t, id.Bind(netip.MustParseAddrPort("[fe80::1%near0]:0")))
	assert.Equal(t, netip.MustParseAddr("fe80::1%near0"), id.LocalAddr().Addr())
	for _, to := range []string{"[fe80::1%lo]:7", "[fe80::1%far0]:7", "[fe80::2]:7", "[fe80::2%lo]:7"} {
		err := newID().ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort(to), time.Second)
		assert.ErrorIs(t, err, syscall.ENETUNREACH, to)
		assert.ErrorContains(t, err, to)
	}
	assert.ErrorIs(t, id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort("[fe80::2%far0]:7"), time.Second),
		syscall.ENETUNREACH)
	id = newID()
	require.NoError(t, id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort("[fe80::2%near0]:7"), time.Second))
	assert.Equal(t, netip.MustParseAddr("fe80::1%near0"), id.LocalAddr().Addr())
	assert.Equal(t, "[fe80::2%near0]:7", id.PeerAddr().String())
	assert.Equal(t, map[netip.Addr]string{netip.MustParseAddr("fe80::1%near0"): "soft0"}, near.Addresses())

	device, err := rdma.OpenOn(near, "soft0")
	require.NoError(t, err)
	entry, err := device.FindGID(rdma.GIDQuery{Address: netip.MustParseAddr("fe80::1")})
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddr("fe80::1%near0"), rdma.GIDEntryAddress(entry))
	require.NoError(t, device.Close())

	l, err := listening(stream.Config{Backend: far}).Listen(ctx, "[fe80::2%far0]:7471")
	require.NoError(t, err)
	defer l.Close()
	assert.Equal(t, "[fe80::2%far0]:7471", l.Addr().String())
	done := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err.Error()
			return
		}
		local, peer := conn.LocalAddr().String(), netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr().String()
		io.Copy(conn, conn)
		conn.Close()
		done <- local + " " + peer
	}()
	conn, err := dialer(stream.Config{Backend: near}).Dial(ctx, "[fe80::2%near0]:7471")
	require.NoError(t, err)
	assert.Equal(t, "[fe80::2%near0]:7471", conn.RemoteAddr().String())
	assert.Equal(t, "fe80::1%near0", netip.MustParseAddrPort(conn.LocalAddr().String()).Addr().String())
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)
	back := make([]byte, 5)
	_, err = io.ReadFull(conn, back)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(back))
	require.NoError(t, conn.Close())
	assert.Equal(t, "[fe80::2%far0]:7471 fe80::1%far0", <-done)
}

// TestLinkLocalNoAnswer: the error for an unresponsive peer suggests an address to open on the peer.
func TestLinkLocalNoAnswer(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	near, _ := linkLocals(t)
	config := stream.Config{Backend: near, HandshakeTimeout: 50 * time.Millisecond}
	_, err := dialer(config).Dial(t.Context(), "[fe80::9%near0]:7471")
	assert.ErrorContains(t, err, "[fe80::9%near0]:7471")
	assert.ErrorContains(t, err, "perhaps no process has a device at fe80::9%near0: start the listener there, on an "+
		"adapter or with GOVERBS_DEVICE=soft@fe80::9%INTERFACE, and allow")
}
