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

// TestSegmentation: segmentation offload is used in both directions. On loopback, datagrams written together are read
// together.
func TestSegmentation(t *testing.T) {
	for _, addr := range []netip.Addr{v4, v6} {
		local, remote := opened(t, addr, Options{}), opened(t, addr, Options{})
		assert.Equal(t, Counted, local.Identification(remote.Addr().Addr()))
		sent := datagrams(15, 4136, 100)
		_, err := local.Write(remote.Addr(), sent, 4136)
		require.NoError(t, err)
		var a Arrival
		require.NoError(t, remote.Read(make([]byte, MaxRead), &a))
		assert.Equal(t, Arrival{N: len(sent), Segment: 4136, From: local.Addr(), TTL: 64}, a)
		assert.EqualValues(t, 1, local.Counters().Writes)
	}
}

// TestDeviceRejectsSegments imitates a device without checksum offload on older kernels.
func TestDeviceRejectsSegments(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.EINVAL, syscall.EOPNOTSUPP} {
		for _, addr := range []netip.Addr{v4, v6} {
			local, remote := opened(t, addr, Options{}), opened(t, addr, Options{})
			other := opened(t, map[bool]netip.Addr{true: netip.MustParseAddr("127.0.0.2"), false: addr}[addr.Is4()],
				Options{})
			local.out.refuse = errno
			sent := datagrams(5, 1000, 10)
			n, err := local.Write(remote.Addr(), sent, 1000)
			if addr.Is4() {
				require.ErrorIs(t, err, ErrSealAgain)
				require.Zero(t, n)
				assert.Zero(t, local.Counters().Sent)
				n, err = local.Write(remote.Addr(), sent, 1000)
			}
			require.NoError(t, err)
			require.Equal(t, len(sent), n)
			got, sizes := receive(t, remote, local.Addr(), len(sent))
			assert.Equal(t, sent, got)
			assert.Equal(t, []int{1000, 1000, 1000, 1000, 10}, sizes)
			assert.EqualValues(t, 5, local.Counters().Writes)
			assert.EqualValues(t, 1, local.Counters().SegmentationRefused)
			assert.Equal(t, Zero, local.Identification(remote.Addr().Addr()))
			if addr.Is4() {
				assert.Equal(t, Counted, local.Identification(other.Addr().Addr()), "the socket works on another device")
			}
		}
	}
}

// TestFullSendBuffer checks the behavior after the kernel has reported a full buffer.
func TestFullSendBuffer(t *testing.T) {
	local := opened(t, v4, Options{})
	n, err := local.sent(10, 1, syscall.EAGAIN)
	assert.Zero(t, n)
	assert.ErrorIs(t, err, ErrFull)
	assert.EqualValues(t, 1, local.Counters().Full)
	require.NoError(t, local.WaitWrite(limit), "the buffer is not full")
	_, err = local.sent(10, 1, syscall.ENOBUFS)
	assert.ErrorIs(t, err, ErrFull)
	start := time.Now()
	require.NoError(t, local.WaitWrite(limit))
	assert.GreaterOrEqual(t, time.Since(start), moment, "the kernel does not report when a device's queue has room")
}

// TestOverflowIsCounted: received datagrams and those that the kernel dropped from a full buffer add up to all sent.
func TestOverflowIsCounted(t *testing.T) {
	local, remote := opened(t, v4, Options{}), opened(t, v4, Options{Buffer: 4096})
	const sent = 100
	for range sent {
		_, err := local.Write(remote.Addr(), make([]byte, 1000), 1000)
		require.NoError(t, err)
	}
	var a Arrival
	for b := make([]byte, MaxRead); ; {
		got, err := remote.ReadNow(b, &a)
		require.NoError(t, err)
		if !got {
			break
		}
	}
	c := remote.Counters()
	assert.NotZero(t, c.Overflows)
	assert.EqualValues(t, sent, c.Received+c.Overflows)
	require.NoError(t, remote.Close())
	assert.Equal(t, c, remote.Counters(), "also after Close")
}

func TestTooShortBufferIsCounted(t *testing.T) {
	local, remote := opened(t, v4, Options{}), opened(t, v4, Options{})
	_, err := local.Write(remote.Addr(), make([]byte, 100), 100)
	require.NoError(t, err)
	_, err = local.Write(remote.Addr(), make([]byte, 10), 10)
	require.NoError(t, err)
	var a Arrival
	require.NoError(t, remote.Read(make([]byte, 50), &a))
	assert.Equal(t, 10, a.N, "a truncated datagram is not delivered")
	assert.EqualValues(t, 1, remote.Counters().Truncated)
}

func TestTooLongDatagram(t *testing.T) {
	local := opened(t, v4, Options{})
	local.out.refuse = syscall.EINVAL // as kernels do for segments beyond the path MTU
	_, err := local.Write(local.Addr(), make([]byte, MaxWrite), MaxWrite-1)
	assert.ErrorIs(t, err, ErrSealAgain, "every datagram fits the MTU of loopback")
}

func TestPortInUse(t *testing.T) {
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

// TestPortInUseByUnknown: the port is used by the kernel or another user.
func TestPortInUseByUnknown(t *testing.T) {
	const header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(addr string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(header + "   41: " + addr +
			" 00000000:0000 07 00000000:00000000 00:00000000 00000000  0  0 77 2 0000000000000000 0\n")}
	}
	every := strings.Repeat("0", 32) + ":12B7" // [::]:4791 in either byte order
	at := netip.MustParseAddrPort("127.0.0.1:4791")
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink} }
	for name, c := range map[string]struct {
		files  fstest.MapFS
		output string
	}{
		"rxe": {fstest.MapFS{"proc/thread-self/net/udp6": row(every), "sys/module/rdma_rxe/refcnt": {}},
			"the kernel's Soft-RoCE uses the port in this network namespace: unload rdma_rxe"},
		"rxe, built in": {fstest.MapFS{"sys/class/infiniband/rxe0": link("../x")}, "Soft-RoCE uses the port"},
		"another user": {fstest.MapFS{"proc/thread-self/net/udp6": row(every)},
			"process of another user uses the port"},
		"a process, and rxe is loaded": {fstest.MapFS{"proc/thread-self/net/udp": row("00000000:12B7"),
			"sys/module/rdma_rxe/refcnt": {}, "proc/12/fd/3": link("socket:[77]"),
			"proc/12/comm": {Data: []byte("x\n")}}, `process 12 ("x") uses the port`},
		"another port": {fstest.MapFS{"proc/thread-self/net/udp": row("00000000:12B8"),
			"proc/12/fd/3": link("socket:[77]")}, "an unknown user of the port"},
		"another address": {fstest.MapFS{"proc/thread-self/net/udp": row("01020304:12B7"),
			"proc/12/fd/3": link("socket:[77]")}, "an unknown user of the port"},
		"rubbish": {fstest.MapFS{"proc/thread-self/net/udp": row("0:1"),
			"proc/thread-self/net/udp6": {Data: []byte("a\nb c d e f g h i j k\nxxxxxxxx:12B7\n")}},
			"an unknown user of the port"},
		"nothing": {fstest.MapFS{}, "an unknown user of the port"},
	} {
		assert.Contains(t, holderIn(c.files, at), c.output, name)
	}
}

// TestUnmappedMemory: a registered region may be unmapped at any time.
func TestUnmappedMemory(t *testing.T) {
	local, remote := opened(t, v4, Options{}), opened(t, v4, Options{})
	removed, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	hole := removed[8192:12288]
	require.NoError(t, syscall.Mprotect(hole, syscall.PROT_NONE))
	for _, segment := range []int{1000, 20000} {
		n, err := local.WriteBuffers(remote.Addr(), [][]byte{{1, 2, 3}, removed[:5000], hole[:10], {4}}, segment)
		assert.ErrorIs(t, err, syscall.EFAULT)
		assert.Zero(t, n)
	}
	require.NoError(t, syscall.Munmap(removed))
	_, err = local.Write(remote.Addr(), []byte("next"), 4)
	require.NoError(t, err)
	got, _ := receive(t, remote, local.Addr(), 4)
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
	local := opened(t, v4, Options{})
	group := netip.MustParseAddr("239.255.18.7")
	first, err := local.Join(group)
	require.NoError(t, err)
	defer first.Close()
	second, err := local.Join(group)
	require.NoError(t, err)
	defer second.Close()
	sent := datagrams(4, 1000, 20)
	_, err = local.Write(netip.AddrPortFrom(group, local.Addr().Port()), sent, 1000)
	require.NoError(t, err)
	for _, member := range []*Socket{first, second} {
		got, _ := receive(t, member, local.Addr(), len(sent))
		assert.Equal(t, sent, got)
		assert.Equal(t, group, member.Addr().Addr())
	}
	for _, none := range []netip.Addr{v4, v6, netip.MustParseAddr("ff02::1")} {
		_, err = local.Join(none)
		assert.ErrorContains(t, err, "not a multicast group of IPv4")
	}
}
