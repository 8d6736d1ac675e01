// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/soft/internal/testbed"
)

// roce opens a socket on RoCE's port, which is free in a new namespace.
func roce(t *testing.T, addr netip.Addr, o Options) *Socket {
	t.Helper()
	s, err := Open(addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	require.Equal(t, netip.AddrPortFrom(addr, 4791), s.Addr())
	return s
}

// TestIdentification inspects packets on the cable: the ICRC of RoCE covers the IPv4 Identification, and rxe drops
// packets whose Identification differs from the sealed one.
func TestIdentification(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	c := newCable(t)
	for _, sums := range []bool{true, false} { // a device without checksum offload rejects segments on older kernels
		c.offload(t, sums)
		s, plain := roce(t, here4, Options{}), opened(t, here4, Options{Plain: true})
		six := roce(t, here6, Options{})
		to4, to6 := netip.AddrPortFrom(there4, 4791), netip.AddrPortFrom(there6, 4791)
		sent := datagrams(9, 1064, 100)
		for _, w := range []struct {
			s  *Socket
			to netip.AddrPort
		}{{s, to4}, {s, to4}, {plain, to4}, {six, to6}} {
			_, err := w.s.Write(w.to, sent, 1064)
			if err == ErrSealAgain {
				assert.False(t, sums, "only a device without checksum offload rejects segments")
				assert.Equal(t, Zero, w.s.Identification(there4))
				_, err = w.s.Write(w.to, sent, 1064)
			}
			require.NoError(t, err)
			for i, p := range c.packets(t, 9) {
				if w.to.Addr().Is4() {
					want := map[Identification]int{Zero: 0, Counted: i}[w.s.Identification(there4)]
					assert.EqualValues(t, want, binary.BigEndian.Uint16(p[4:]), "Identification of datagram %d", i)
					assert.EqualValues(t, 0x4000, binary.BigEndian.Uint16(p[6:]), "DF and no fragment")
					p = p[20:]
				} else {
					p = p[40:]
				}
				assert.EqualValues(t, w.s.Addr().Port(), binary.BigEndian.Uint16(p))
				assert.Equal(t, sent[i*1064:min(i*1064+1064, len(sent))], p[8:])
				if w.s == plain {
					assert.Zero(t, binary.BigEndian.Uint16(p[6:]), "checksum")
				}
			}
		}
		t.Logf("checksum offload: %t: %d segments rejected", sums, s.Counters().SegmentationRefused)
		assert.Equal(t, Zero, plain.Identification(there4))
		require.NoError(t, s.Close())
		require.NoError(t, six.Close())
	}
}

// TestFromAnotherHost reads packets as adapters and Soft-RoCE send them: without UDP checksum, and with any
// Identification.
func TestFromAnotherHost(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	c := newCable(t)
	for _, a := range []struct{ local, remote netip.Addr }{{here4, there4}, {here6, there6}} {
		s := roce(t, a.local, Options{})
		c.send(t, packet(unix.IPPROTO_UDP, a.local, a.remote, datagram(0xc123, 4791, []byte("from afar"))))
		b, got := make([]byte, MaxRead), Arrival{}
		require.NoError(t, s.Read(b, &got))
		assert.Equal(t, Arrival{N: 9, Segment: 9, From: netip.AddrPortFrom(a.remote, 0xc123), TTL: 17, TOS: 0x28}, got)
		assert.Equal(t, "from afar", string(b[:got.N]))
	}
}

// TestUnreachablePort: ICMP errors are not returned.
func TestUnreachablePort(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	c := newCable(t)
	s := roce(t, here4, Options{})
	_, err := s.Write(netip.AddrPortFrom(there4, 4791), []byte("hello!"), 6)
	require.NoError(t, err)
	refused := c.packets(t, 1)[0]
	for code := range byte(14) {
		message := append([]byte{3, code, 0, 0, 0, 0, 0, 0}, refused...)
		binary.BigEndian.PutUint16(message[2:], ^checkSum(message))
		c.send(t, packet(unix.IPPROTO_ICMP, here4, there4, message))
	}
	c.send(t, packet(unix.IPPROTO_UDP, here4, there4, datagram(4791, 4791, []byte("alive"))))
	b, got := make([]byte, MaxRead), Arrival{}
	require.NoError(t, s.Read(b, &got))
	assert.Equal(t, "alive", string(b[:got.N]))
	_, err = s.Write(netip.AddrPortFrom(there4, 4791), []byte("hello!"), 6)
	assert.NoError(t, err)
	// Without a route the datagram is lost.
	_, err = s.Write(netip.MustParseAddrPort("198.51.100.1:4791"), []byte("hello!"), 6)
	assert.NoError(t, err)
	assert.EqualValues(t, 1, s.Counters().Unreachable)
}

// TestPathOf1500 checks the limits of a path with MTU 1500.
func TestPathOf1500(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	newCable(t)
	for _, a := range []struct {
		local, remote netip.Addr
		payload       int
	}{{here4, there4, 1472}, {here6, there6, 1452}} {
		s := roce(t, a.local, Options{})
		mtu, err := s.MTU(a.remote)
		require.NoError(t, err)
		assert.Equal(t, a.payload, mtu)
		assert.Equal(t, 1024, RoCEMTU(mtu))
		to := netip.AddrPortFrom(a.remote, 4791)
		n, err := s.Write(to, make([]byte, 3*mtu), mtu)
		require.NoError(t, err)
		assert.Equal(t, 3*mtu, n)
		for _, older := range []syscall.Errno{0, syscall.EINVAL} { // older kernels return EINVAL
			s.out.refuse = older
			for _, length := range []int{mtu + 1, 3 * (mtu + 1)} {
				_, err = s.Write(to, make([]byte, length), mtu+1)
				assert.ErrorIs(t, err, syscall.EMSGSIZE, "%d bytes", length)
			}
		}
		assert.Zero(t, s.Counters().SegmentationRefused, "the socket must keep using segmentation")
	}
	_, err := opened(t, here4, Options{}).MTU(netip.MustParseAddr("198.51.100.1"))
	assert.ErrorIs(t, err, syscall.ENETUNREACH)
}

// TestFullBuffer sends faster than the device.
func TestFullBuffer(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	c := newCable(t)
	slow := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: c.local.Attrs().Index, Handle: 1 << 16,
		Parent: netlink.HANDLE_ROOT}, Rate: 2 << 20, Limit: 64 << 20, Buffer: 1 << 20}
	if err := netlink.QdiscAdd(slow); err != nil {
		t.Skip("the kernel does not support the token bucket filter:", err)
	}
	s := roce(t, here4, Options{Buffer: 256 << 10})
	to := netip.AddrPortFrom(there4, 4791)
	b := make([]byte, 32*1024)
	write := func() error {
		n, err := s.Write(to, b, 1024)
		if err == nil {
			assert.Len(t, b, n)
		}
		return err
	}
	for round := range 3 {
		sent := 0
		for err := error(nil); err != ErrFull; sent++ {
			require.NoError(t, err)
			err = write()
			require.Less(t, sent, 10000)
		}
		assert.EqualValues(t, round+1, s.Counters().Full)
		start := time.Now()
		require.NoError(t, s.WaitWrite(limit))
		t.Logf("full after %d Writes, writable after %v", sent, time.Since(start))
		require.NoError(t, write(), "at least one datagram fits")
	}
	// Close wakes waiting writers.
	require.NoError(t, netlink.QdiscDel(slow))
	slow.Rate, slow.Buffer = 16<<10, 16<<20
	require.NoError(t, netlink.QdiscAdd(slow))
	for write() != ErrFull {
	}
	assert.ErrorIs(t, s.WaitWrite(10*time.Millisecond), ErrFull)
	waits := make(chan error, 1)
	go func() { waits <- s.WaitWrite(time.Hour) }()
	require.NoError(t, s.Close())
	select {
	case err := <-waits:
		assert.ErrorIs(t, err, net.ErrClosed)
	case <-time.After(limit):
		t.Fatal("WaitWrite still waits after Close")
	}
}

// TestGroupsOfIPv6 tests IPv6 multicast, which loopback does not support, and a link-local address.
func TestGroupsOfIPv6(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	c := newCable(t)
	mac := c.local.Attrs().HardwareAddr
	local := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	local = local.WithZone("near0")
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		s, err := Open(local, Options{})
		require.NoError(t, err)
		s.Close()
	}, limit, 10*time.Millisecond)
	for _, addr := range []netip.Addr{here6, local} {
		for _, name := range []string{"ff02::4791", "ff05::4791", "ff0e::4791"} {
			s, group := roce(t, addr, Options{}), netip.MustParseAddr(name)
			member, err := s.Join(group)
			require.NoError(t, err)
			sent := datagrams(3, 1000, 50)
			_, err = s.Write(netip.AddrPortFrom(group, 4791), sent, 1000)
			require.NoError(t, err)
			from := netip.AddrPortFrom(addr.WithZone(""), 4791)
			got, _ := receive(t, member, from, len(sent))
			assert.Equal(t, sent, got)
			require.NoError(t, member.Close())
			require.NoError(t, s.Close())
		}
	}
	socket := roce(t, local, Options{})
	_, err := socket.Write(netip.AddrPortFrom(local.WithZone(""), 4791), []byte("to myself"), 9)
	require.NoError(t, err)
	got, _ := receive(t, socket, netip.AddrPortFrom(local.WithZone(""), 4791), 9)
	assert.Equal(t, "to myself", string(got))
}

// TestAddressRemoved: while the address of a socket is removed, its datagrams are lost. The socket must not conclude
// that the device lacks segmentation offload, which would slow it down permanently.
func TestAddressRemoved(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	c := newCable(t)
	own, err := netlink.ParseAddr("198.51.100.1/32")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(c.local, own))
	s, err := Open(netip.MustParseAddr("198.51.100.1"), Options{})
	require.NoError(t, err)
	defer s.Close()
	to := netip.AddrPortFrom(here4, Port)
	_, err = s.Write(to, make([]byte, 3000), 1000)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrDel(c.local, own))
	_, err = s.Write(to, make([]byte, 3000), 1000)
	require.NoError(t, err)
	require.Positive(t, s.Counters().Unreachable)
	require.Equal(t, Counted, s.Identification(to.Addr()))
	require.NoError(t, netlink.AddrAdd(c.local, own))
	_, err = s.Write(to, make([]byte, 3000), 1000)
	require.NoError(t, err)
	require.Zero(t, s.Counters().SegmentationRefused)
}

// TestLoopbackIsDown: an address can be shared in a network namespace whose loopback interface is down. The error must
// not name another program.
func TestLoopbackIsDown(t *testing.T) {
	if !testbed.InNamespace(t) {
		return
	}
	newCable(t)
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetDown(lo))
	start := time.Now()
	s, err := Open(here4, Options{Share: true})
	require.NoError(t, err)
	defer s.Close()
	require.Less(t, time.Since(start), 10*time.Second)
}
