// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOneReadBringsMany: segmentation offload is used in both directions. On loopback, datagrams written together are
// read together.
func TestOneReadBringsMany(t *testing.T) {
	for _, addr := range []netip.Addr{v4, v6} {
		near, far := opened(t, addr, Options{}), opened(t, addr, Options{})
		assert.Equal(t, Counted, near.Identification(far.Addr().Addr()))
		sent := datagrams(15, 4136, 100)
		_, err := near.Write(far.Addr(), sent, 4136)
		require.NoError(t, err)
		var a Arrival
		require.NoError(t, far.Read(make([]byte, MaxRead), &a))
		assert.Equal(t, Arrival{N: len(sent), Segment: 4136, From: near.Addr(), TTL: 64}, a)
		assert.EqualValues(t, 1, near.Counters().Writes)
	}
}

// TestDeviceRejectsSegments imitates a device without checksum offload on older kernels.
func TestDeviceRejectsSegments(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.EINVAL, syscall.EOPNOTSUPP} {
		for _, addr := range []netip.Addr{v4, v6} {
			near, far := opened(t, addr, Options{}), opened(t, addr, Options{})
			other := opened(t, map[bool]netip.Addr{true: netip.MustParseAddr("127.0.0.2"), false: addr}[addr.Is4()],
				Options{})
			near.out.refuse = errno
			sent := datagrams(5, 1000, 10)
			n, err := near.Write(far.Addr(), sent, 1000)
			if addr.Is4() {
				require.ErrorIs(t, err, ErrSealAgain)
				require.Zero(t, n)
				assert.Zero(t, near.Counters().Sent)
				n, err = near.Write(far.Addr(), sent, 1000)
			}
			require.NoError(t, err)
			require.Equal(t, len(sent), n)
			got, sizes := receive(t, far, near.Addr(), len(sent))
			assert.Equal(t, sent, got)
			assert.Equal(t, []int{1000, 1000, 1000, 1000, 10}, sizes)
			assert.EqualValues(t, 5, near.Counters().Writes)
			assert.EqualValues(t, 1, near.Counters().SegmentationRefused)
			assert.Equal(t, Zero, near.Identification(far.Addr().Addr()))
			if addr.Is4() {
				assert.Equal(t, Counted, near.Identification(other.Addr().Addr()), "another device serves it")
			}
		}
	}
}

// TestNoRoom checks the behavior after the kernel has reported a full buffer.
func TestNoRoom(t *testing.T) {
	near := opened(t, v4, Options{})
	n, err := near.sent(10, 1, syscall.EAGAIN)
	assert.Zero(t, n)
	assert.ErrorIs(t, err, ErrFull)
	assert.EqualValues(t, 1, near.Counters().Full)
	require.NoError(t, near.WaitWrite(limit), "there is room")
	_, err = near.sent(10, 1, syscall.ENOBUFS)
	assert.ErrorIs(t, err, ErrFull)
	start := time.Now()
	require.NoError(t, near.WaitWrite(limit))
	assert.GreaterOrEqual(t, time.Since(start), moment, "the kernel does not report when a device's queue has room")
}

// TestOverflowIsCounted: received datagrams and those that the kernel dropped from a full buffer add up to all sent.
func TestOverflowIsCounted(t *testing.T) {
	near, far := opened(t, v4, Options{}), opened(t, v4, Options{Buffer: 4096})
	const sent = 100
	for range sent {
		_, err := near.Write(far.Addr(), make([]byte, 1000), 1000)
		require.NoError(t, err)
	}
	var a Arrival
	for b := make([]byte, MaxRead); ; {
		got, err := far.ReadNow(b, &a)
		require.NoError(t, err)
		if !got {
			break
		}
	}
	c := far.Counters()
	assert.NotZero(t, c.Overflows)
	assert.EqualValues(t, sent, c.Received+c.Overflows)
	require.NoError(t, far.Close())
	assert.Equal(t, c, far.Counters(), "also when it is closed")
}

func TestTooShortBufferIsCounted(t *testing.T) {
	near, far := opened(t, v4, Options{}), opened(t, v4, Options{})
	_, err := near.Write(far.Addr(), make([]byte, 100), 100)
	require.NoError(t, err)
	_, err = near.Write(far.Addr(), make([]byte, 10), 10)
	require.NoError(t, err)
	var a Arrival
	require.NoError(t, far.Read(make([]byte, 50), &a))
	assert.Equal(t, 10, a.N, "a part of a datagram is not a datagram")
	assert.EqualValues(t, 1, far.Counters().Truncated)
}

func TestTooLongDatagram(t *testing.T) {
	near := opened(t, v4, Options{})
	near.out.refuse = syscall.EINVAL // as kernels do for segments beyond the path MTU
	_, err := near.Write(near.Addr(), make([]byte, MaxWrite), MaxWrite-1)
	assert.ErrorIs(t, err, ErrSealAgain, "on loopback everything fits")
}

func TestHolderIsNamed(t *testing.T) {
	name, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	const evil = "\x1b[2J" // clears a terminal
	require.NoError(t, os.WriteFile("/proc/self/comm", []byte(evil), 0))
	defer func() { assert.NoError(t, os.WriteFile("/proc/self/comm", bytes.TrimSpace(name), 0)) }()
	process := fmt.Sprintf("process %d (%q) uses the port", os.Getpid(), evil)
	for _, addr := range []netip.Addr{v4, v6} {
		used := opened(t, addr, Options{})
		_, err := Open(addr, Options{Port: int(used.Addr().Port())})
		assert.ErrorContains(t, err, process)
	}
	everywhere, err := net.ListenUDP("udp", nil)
	require.NoError(t, err)
	defer everywhere.Close()
	_, err = Open(v4, Options{Port: everywhere.LocalAddr().(*net.UDPAddr).Port})
	assert.ErrorContains(t, err, process)
}

// TestSoftRoCEHasThePort needs a machine where Soft-RoCE is loaded.
func TestSoftRoCEHasThePort(t *testing.T) {
	if !softRoCE(os.DirFS("/")) {
		t.Skip("the kernel's Soft-RoCE is not loaded")
	}
	s, err := Open(v4, Options{})
	if err == nil {
		s.Close()
		t.Skip("Soft-RoCE has no device in this network namespace")
	}
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "the kernel's Soft-RoCE uses the port in this network namespace")
}

// TestUnknownHolder: the port is used by the kernel or another user.
func TestUnknownHolder(t *testing.T) {
	const header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(addr string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(header + "   41: " + addr +
			" 00000000:0000 07 00000000:00000000 00:00000000 00000000  0  0 77 2 0000000000000000 0\n")}
	}
	every := strings.Repeat("0", 32) + ":12B7" // [::]:4791 in either byte order
	at := netip.MustParseAddrPort("127.0.0.1:4791")
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink} }
	for name, c := range map[string]struct {
		files fstest.MapFS
		says  string
	}{
		"rxe": {fstest.MapFS{"proc/thread-self/net/udp6": row(every), "sys/module/rdma_rxe/refcnt": {}},
			"the kernel's Soft-RoCE uses the port in this network namespace: unload rdma_rxe"},
		"rxe, built in": {fstest.MapFS{"sys/class/infiniband/rxe0": link("../x")}, "Soft-RoCE uses the port"},
		"a stranger": {fstest.MapFS{"proc/thread-self/net/udp6": row(every)},
			"process of another user uses the port"},
		"a process, though rxe is loaded elsewhere": {fstest.MapFS{"proc/thread-self/net/udp": row("00000000:12B7"),
			"sys/module/rdma_rxe/refcnt": {}, "proc/12/fd/3": link("socket:[77]"),
			"proc/12/comm": {Data: []byte("x\n")}}, `process 12 ("x") uses the port`},
		"of another port": {fstest.MapFS{"proc/thread-self/net/udp": row("00000000:12B8"),
			"proc/12/fd/3": link("socket:[77]")}, "an unknown user of the port"},
		"of another address": {fstest.MapFS{"proc/thread-self/net/udp": row("01020304:12B7"),
			"proc/12/fd/3": link("socket:[77]")}, "an unknown user of the port"},
		"rubbish": {fstest.MapFS{"proc/thread-self/net/udp": row("0:1"),
			"proc/thread-self/net/udp6": {Data: []byte("a\nb c d e f g h i j k\nxxxxxxxx:12B7\n")}},
			"an unknown user of the port"},
		"nothing": {fstest.MapFS{}, "an unknown user of the port"},
	} {
		assert.Contains(t, holderIn(c.files, at), c.says, name)
	}
}

// TestUnmappedMemory: a registered region may be unmapped at any time.
func TestUnmappedMemory(t *testing.T) {
	near, far := opened(t, v4, Options{}), opened(t, v4, Options{})
	removed, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	hole := removed[8192:12288]
	require.NoError(t, syscall.Mprotect(hole, syscall.PROT_NONE))
	for _, segment := range []int{1000, 20000} {
		n, err := near.WriteBuffers(far.Addr(), [][]byte{{1, 2, 3}, removed[:5000], hole[:10], {4}}, segment)
		assert.ErrorIs(t, err, syscall.EFAULT)
		assert.Zero(t, n)
	}
	require.NoError(t, syscall.Munmap(removed))
	_, err = near.Write(far.Addr(), []byte("next"), 4)
	require.NoError(t, err)
	got, _ := receive(t, far, near.Addr(), 4)
	assert.Equal(t, "next", string(got))
}

func TestBuffer(t *testing.T) {
	s := opened(t, v4, Options{})
	receive, send := s.Buffer()
	assert.GreaterOrEqual(t, receive, 64<<10)
	assert.GreaterOrEqual(t, send, 64<<10)
	t.Logf("buffers: %d to receive, %d to send", receive, send)
	require.NoError(t, s.Close())
	receive, send = s.Buffer()
	assert.Zero(t, receive+send)
}

// TestMulticast uses IPv4, because loopback has no route to IPv6 groups.
func TestMulticast(t *testing.T) {
	near := opened(t, v4, Options{})
	group := netip.MustParseAddr("239.255.18.7")
	first, err := near.Join(group)
	require.NoError(t, err)
	defer first.Close()
	second, err := near.Join(group)
	require.NoError(t, err)
	defer second.Close()
	sent := datagrams(4, 1000, 20)
	_, err = near.Write(netip.AddrPortFrom(group, near.Addr().Port()), sent, 1000)
	require.NoError(t, err)
	for _, member := range []*Socket{first, second} {
		got, _ := receive(t, member, near.Addr(), len(sent))
		assert.Equal(t, sent, got)
		assert.Equal(t, group, member.Addr().Addr())
	}
	for _, none := range []netip.Addr{v4, v6, netip.MustParseAddr("ff02::1")} {
		_, err = near.Join(none)
		assert.ErrorContains(t, err, "not a multicast group of IPv4")
	}
}
