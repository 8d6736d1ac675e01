// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of the test's host, and of the other host, which exists only as packets.
var (
	here4, there4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	here6, there6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

// cable is a veth pair (MTU 1500) from this host to another, whose end the test controls.
type cable struct {
	local, remote netlink.Link
	fd            int // a packet socket at the far end
}

func newCable(t *testing.T) *cable {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "far0"}
	veth.Name, veth.MTU = "near0", 1500
	if err := netlink.LinkAdd(veth); errors.Is(err, syscall.EOPNOTSUPP) {
		t.Skip("the kernel does not support veth")
	} else {
		require.NoError(t, err)
	}
	c := &cable{}
	c.local, err = netlink.LinkByName("near0")
	require.NoError(t, err)
	c.remote, err = netlink.LinkByName("far0")
	require.NoError(t, err)
	for _, file := range []string{"near0/accept_dad", "far0/disable_ipv6"} {
		value := map[bool]string{true: "0", false: "1"}[strings.HasPrefix(file, "near0")]
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+file, []byte(value), 0); err != nil {
			t.Log(err)
		}
	}
	require.NoError(t, netlink.LinkSetUp(c.local))
	require.NoError(t, netlink.LinkSetUp(c.remote))
	for _, end := range []netlink.Link{c.local, c.remote} { // the kernel drops packets until it detects the carrier
		require.Eventually(t, func() bool {
			link, err := netlink.LinkByIndex(end.Attrs().Index)
			return err == nil && (link.Attrs().OperState == netlink.OperUp ||
				link.Attrs().OperState == netlink.OperUnknown)
		}, time.Minute, time.Millisecond)
	}
	for _, a := range []struct{ local, remote netip.Addr }{{here4, there4}, {here6, there6}} {
		bits := a.local.BitLen()
		require.NoError(t, netlink.AddrAdd(c.local, &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{
			IP: a.local.AsSlice(), Mask: net.CIDRMask(bits*3/4, bits)}}), "%v", a.local)
		require.NoError(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: c.local.Attrs().Index, IP: a.remote.AsSlice(),
			State: netlink.NUD_PERMANENT, HardwareAddr: c.remote.Attrs().HardwareAddr}))
	}
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8&0xff // in network byte order on little-endian machines
	protocol := uint16(all)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		protocol = unix.ETH_P_ALL
	}
	c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(c.fd) })
	require.NoError(t, unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: c.remote.Attrs().Index}))
	writeTimeout := unix.NsecToTimeval(limit.Nanoseconds())
	require.NoError(t, unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &writeTimeout))
	return c
}

// offload enables or disables checksum offload on the local device. UDP segmentation is always done in software, so
// that the remote end sees datagrams as on a real cable.
func (c *cable) offload(t *testing.T, sums bool) {
	t.Helper()
	require.NoError(t, netlink.LinkSetGSOMaxSegs(c.local, 1))
	const setTxChecksum = 0x17 // ETHTOOL_STXCSUM
	value := struct{ command, on uint32 }{setTxChecksum, 0}
	if sums {
		value.on = 1
	}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], c.local.Attrs().Name)
	request.data = unsafe.Pointer(&value)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	require.Zero(t, errno, "%v", errno)
}

// packets returns the next n UDP packets at the remote end, starting with the IP header.
func (c *cable) packets(t *testing.T, n int) (all [][]byte) {
	t.Helper()
	b := make([]byte, 1<<16)
	for len(all) < n {
		length, from, err := unix.Recvfrom(c.fd, b, 0)
		require.NoError(t, err, "after %d packets of %d", len(all), n)
		if link, _ := from.(*unix.SockaddrLinklayer); link == nil || link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		switch p := b[14:length]; {
		case binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP && p[9] == unix.IPPROTO_UDP,
			binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IPV6 && p[6] == unix.IPPROTO_UDP:
			all = append(all, slices.Clone(p))
		}
	}
	return all
}

// send sends a packet, which begins with the IP header, from the other host.
func (c *cable) send(t *testing.T, packet []byte) {
	t.Helper()
	frame := slices.Concat(c.local.Attrs().HardwareAddr, c.remote.Attrs().HardwareAddr, []byte{0x08, 0x00}, packet)
	if packet[0]>>4 == 6 {
		binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
	}
	require.NoError(t, unix.Send(c.fd, frame, 0))
}

// packet returns a packet from the other host, with UDP checksum 0, traffic class 0x28 and hop limit 17.
func packet(protocol byte, local, remote netip.Addr, payload []byte) []byte {
	if local.Is6() {
		h := make([]byte, 40)
		binary.BigEndian.PutUint32(h, 6<<28|0x28<<20)
		binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
		h[6], h[7] = protocol, 17
		return slices.Concat(h[:8], remote.AsSlice(), local.AsSlice(), payload)
	}
	h := []byte{0x45, 0x28, 0, 0, 0x12, 0x34, 0x40, 0, 17, protocol, 0, 0}
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
	h = slices.Concat(h, remote.AsSlice(), local.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^checkSum(h))
	return append(h, payload...)
}

func checkSum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func datagram(from, to uint16, payload []byte) []byte {
	h := make([]byte, 8)
	binary.BigEndian.PutUint16(h, from)
	binary.BigEndian.PutUint16(h[2:], to)
	binary.BigEndian.PutUint16(h[4:], uint16(8+len(payload)))
	return append(h, payload...)
}
