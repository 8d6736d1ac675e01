// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limit is the timeout for an expected event on a busy machine.
const limit = time.Minute

var (
	v4 = netip.MustParseAddr("127.0.0.1")
	v6 = netip.MustParseAddr("::1")
)

// opened opens a socket on a port chosen by the kernel.
func opened(t testing.TB, addr netip.Addr, o Options) *Socket {
	t.Helper()
	o.Port = AnyPort
	s, err := Open(addr, o)
	if addr.Is6() && errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("this machine has no IPv6 loopback")
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// datagrams returns n datagrams of a size, the last one shorter, each with different contents.
func datagrams(n, size, last int) []byte {
	b := make([]byte, (n-1)*size+last)
	for i := range b {
		b[i] = byte(i/size*31 + i)
	}
	return b
}

// receive reads a number of bytes, and checks the sender.
func receive(t testing.TB, s *Socket, from netip.AddrPort, bytes int) (got []byte, sizes []int) {
	t.Helper()
	stop := time.AfterFunc(limit, func() { s.Close() })
	defer stop.Stop()
	b := make([]byte, MaxRead)
	for len(got) < bytes {
		var a Arrival
		require.NoError(t, s.Read(b, &a), "after %d of %d bytes", len(got), bytes)
		require.Equal(t, from, a.From)
		got = append(got, b[:a.N]...)
		for n := a.N; n > 0; n -= a.Segment {
			sizes = append(sizes, min(n, a.Segment))
		}
	}
	return got, sizes
}

// each runs a test over IPv4 and IPv6, with and without the kernel's offloads.
func each(t *testing.T, test func(t *testing.T, local, remote *Socket)) {
	for name, addr := range map[string]netip.Addr{"IPv4": v4, "IPv6": v6} {
		for _, plain := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " plain"}[plain], func(t *testing.T) {
				t.Parallel()
				o := Options{Plain: plain}
				test(t, opened(t, addr, o), opened(t, addr, o))
			})
		}
	}
}

func TestDatagramBoundaries(t *testing.T) {
	each(t, func(t *testing.T, local, remote *Socket) {
		for _, c := range []struct{ n, size, last int }{
			{1, 1, 1}, {1, 1064, 64}, {2, 1064, 1064}, {3, 256, 1}, {15, 4136, 7}, {64, 1000, 1000}, {1, 65000, 65000},
		} {
			sent := datagrams(c.n, c.size, c.last)
			n, err := local.Write(remote.Addr(), sent, c.size)
			require.NoError(t, err)
			require.Equal(t, len(sent), n)
			got, sizes := receive(t, remote, local.Addr(), len(sent))
			assert.True(t, bytes.Equal(sent, got), "%v", c)
			require.Len(t, sizes, c.n)
			for i, size := range sizes {
				assert.Equal(t, min(c.size, len(sent)-i*c.size), size)
			}
		}
		assert.EqualValues(t, 1+1+2+3+15+64+1, local.Counters().Sent)
		assert.EqualValues(t, 1+1+2+3+15+64+1, remote.Counters().Received)
	})
}

func TestBuffersAreJoined(t *testing.T) {
	each(t, func(t *testing.T, local, remote *Socket) {
		sent := datagrams(9, 1000, 77)
		for _, size := range []int{1, 40, 999, 1000, 1001, 2500, 9000} {
			if len(sent)/size > MaxBuffers-2 {
				size = len(sent)/(MaxBuffers-2) + 1
			}
			buffers := append([][]byte{{}}, slices.Collect(slices.Chunk(sent, size))...)
			buffers = slices.Insert(buffers, 2, nil)
			n, err := local.WriteBuffers(remote.Addr(), buffers, 1000)
			require.NoError(t, err)
			require.Equal(t, len(sent), n)
			got, sizes := receive(t, remote, local.Addr(), len(sent))
			assert.True(t, bytes.Equal(sent, got), "buffers of %d", size)
			assert.Len(t, sizes, 9)
		}
		_, err := local.WriteBuffers(remote.Addr(), make([][]byte, MaxBuffers+1), 1000)
		assert.ErrorIs(t, err, syscall.EINVAL)
		n, err := local.WriteBuffers(remote.Addr(), nil, 1000)
		assert.NoError(t, err)
		assert.Zero(t, n)
	})
}

func TestReplyToSender(t *testing.T) {
	each(t, func(t *testing.T, local, remote *Socket) {
		_, err := local.Write(remote.Addr(), []byte("ping"), 4)
		require.NoError(t, err)
		receive(t, remote, local.Addr(), 4)
		_, err = remote.Write(local.Addr(), []byte("pong!"), 5)
		require.NoError(t, err)
		got, _ := receive(t, local, remote.Addr(), 5)
		assert.Equal(t, "pong!", string(got))
	})
}

// TestEmptyDatagramIsCounted: an empty datagram is counted and not delivered.
func TestEmptyDatagramIsCounted(t *testing.T) {
	s := opened(t, v4, Options{})
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Addr()))
	require.NoError(t, err)
	defer c.Close()
	for _, b := range [][]byte{nil, {1}} {
		_, err = c.Write(b)
		require.NoError(t, err)
	}
	var a Arrival
	require.NoError(t, s.Read(make([]byte, MaxRead), &a))
	assert.Equal(t, 1, a.N)
	assert.EqualValues(t, 1, s.Counters().Empty)
}

func TestWriteRejectsInvalidSizes(t *testing.T) {
	local := opened(t, v4, Options{})
	to := local.Addr()
	for name, c := range map[string]struct{ length, segment int }{
		"no size":           {10, 0},
		"negative size":     {10, -1},
		"too many segments": {MaxSegments + 1, 1},
		"too long":          {MaxWrite + 1, 4096},
	} {
		_, err := local.Write(to, make([]byte, c.length), c.segment)
		assert.ErrorIs(t, err, syscall.EINVAL, name)
	}
	_, err := local.Write(netip.AddrPortFrom(v6, 4791), []byte{1}, 1)
	assert.ErrorContains(t, err, "is not reached from")
	assert.Zero(t, local.Counters().Sent)
}

// TestWaitAndReadNow: one goroutine waits and reads while another polls, and each datagram is read once.
func TestWaitAndReadNow(t *testing.T) {
	each(t, func(t *testing.T, local, remote *Socket) {
		b, a := make([]byte, MaxRead), Arrival{}
		got, err := remote.ReadNow(b, &a)
		require.NoError(t, err)
		require.False(t, got)
		var (
			one  sync.Mutex
			seen [200]int
			done atomic.Int64
		)
		read := func() {
			one.Lock()
			defer one.Unlock()
			b, a := make([]byte, MaxRead), Arrival{}
			for {
				got, err := remote.ReadNow(b, &a)
				if err != nil || !got {
					return
				}
				seen[b[0]]++
				done.Add(1)
			}
		}
		var waits, polls sync.WaitGroup
		waits.Go(func() {
			for remote.Wait() == nil && !closed(remote) {
				read()
			}
		})
		polls.Go(func() {
			for start := time.Now(); done.Load() < int64(len(seen)) && time.Since(start) < limit; {
				read()
				runtime.Gosched()
			}
		})
		for i := range seen {
			_, err := local.Write(remote.Addr(), []byte{byte(i)}, 1)
			require.NoError(t, err)
		}
		polls.Wait()
		require.NoError(t, remote.Close())
		waits.Wait()
		for i, n := range seen {
			assert.Equal(t, 1, n, "datagram %d", i)
		}
		_, err = remote.ReadNow(b, &a)
		assert.ErrorIs(t, err, net.ErrClosed)
	})
}

func closed(s *Socket) bool {
	_, err := s.Write(s.Addr(), nil, 1)
	return errors.Is(err, net.ErrClosed)
}

func TestCloseWakesRead(t *testing.T) {
	each(t, func(t *testing.T, local, _ *Socket) {
		failed := make(chan error, 1)
		go func() {
			var a Arrival
			failed <- local.Read(make([]byte, MaxRead), &a)
		}()
		require.NoError(t, local.Close())
		select {
		case err := <-failed:
			assert.ErrorIs(t, err, net.ErrClosed)
		case <-time.After(limit):
			t.Fatal("Read still waits")
		}
		_, err := local.Write(local.Addr(), []byte{1}, 1)
		assert.ErrorIs(t, err, net.ErrClosed)
		assert.ErrorIs(t, local.Read(make([]byte, MaxRead), &Arrival{}), net.ErrClosed)
		assert.ErrorIs(t, local.WaitWrite(limit), net.ErrClosed)
		assert.NoError(t, local.Close())
	})
}

// TestClosedPeer sends to an unused port, which causes an ICMP error. The socket keeps working.
func TestClosedPeer(t *testing.T) {
	each(t, func(t *testing.T, local, remote *Socket) {
		gone := opened(t, local.Addr().Addr(), Options{})
		require.NoError(t, gone.Close())
		for range 10 {
			n, err := local.Write(gone.Addr(), datagrams(3, 1000, 10), 1000)
			require.NoError(t, err)
			require.Equal(t, 2010, n)
		}
		_, err := remote.Write(local.Addr(), []byte("still here"), 10)
		require.NoError(t, err)
		got, _ := receive(t, local, remote.Addr(), 10)
		assert.Equal(t, "still here", string(got))
	})
}

func TestOpenErrors(t *testing.T) {
	used := opened(t, v4, Options{})
	for name, c := range map[string]struct {
		addr   string
		port   int
		is     error
		output string
	}{
		"taken":      {"127.0.0.1", int(used.Addr().Port()), syscall.EADDRINUSE, "uses the port"},
		"not ours":   {"192.0.2.1", AnyPort, syscall.EADDRNOTAVAIL, "network namespace: 127.0.0.1/8"},
		"every":      {"0.0.0.0", 0, syscall.EINVAL, "one address of this machine"},
		"group":      {"224.0.0.1", 0, syscall.EINVAL, "one address of this machine"},
		"no zone":    {"fe80::1", 0, syscall.EINVAL, "fe80::1%eth0"},
		"wrong zone": {"fe80::1%none0", 0, nil, `zone "none0"`},
		"no port":    {"127.0.0.1", 65536, syscall.EINVAL, "not in the range"},
	} {
		_, err := Open(netip.MustParseAddr(c.addr), Options{Port: c.port})
		if c.is != nil {
			assert.ErrorIs(t, err, c.is, name)
		}
		assert.ErrorContains(t, err, c.output, name)
	}
	_, err := Open(netip.Addr{}, Options{})
	assert.ErrorIs(t, err, syscall.EINVAL)
}

func TestMTU(t *testing.T) {
	each(t, func(t *testing.T, local, remote *Socket) {
		mtu, err := local.MTU(remote.Addr().Addr())
		require.NoError(t, err)
		assert.Greater(t, mtu, 16000, "loopback has 65536 or, elsewhere, 16384")
		assert.Equal(t, 4096, RoCEMTU(mtu))
	})
	for payload, mtu := range map[int]int{
		1472: 1024, 1452: 1024, 4096 + 40: 4096, 4096 + 39: 2048, 9000 - 28: 4096, 576 - 28: 256, 552: 512, 296: 256,
		295: 0, -1: 0,
	} {
		assert.Equal(t, mtu, RoCEMTU(payload), "%d", payload)
	}
}

// BenchmarkDatagrams writes and reads 15 datagrams of 4136 bytes.
func BenchmarkDatagrams(b *testing.B) {
	local, remote := opened(b, v4, Options{}), opened(b, v4, Options{})
	sent, got := datagrams(15, 4136, 4136), make([]byte, MaxRead)
	b.SetBytes(int64(len(sent)))
	b.ReportAllocs()
	for b.Loop() {
		exchange(b, local, remote, sent, got)
	}
}

func exchange(t testing.TB, local, remote *Socket, sent, got []byte) {
	if _, err := local.Write(remote.Addr(), sent, 4136); err != nil {
		t.Fatal(err)
	}
	receiveInto(t, remote, got, len(sent))
}

func receiveInto(t testing.TB, remote *Socket, got []byte, bytes int) {
	var a Arrival
	for n := 0; n < bytes; n += a.N {
		if err := remote.Read(got, &a); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	for _, addr := range []netip.Addr{v4, v6} {
		local, remote := opened(t, addr, Options{}), opened(t, addr, Options{})
		sent, got := datagrams(15, 4136, 4136), make([]byte, MaxRead)
		assert.Zero(t, testing.AllocsPerRun(100, func() { exchange(t, local, remote, sent, got) }), "%v", addr)
		buffers := slices.Collect(slices.Chunk(sent, 4096))
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := local.WriteBuffers(remote.Addr(), buffers, 4136); err != nil {
				t.Fatal(err)
			}
			receiveInto(t, remote, got, len(sent))
		}), "%v", addr)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			_, err := local.Write(remote.Addr(), sent[:64], 64)
			if err == nil {
				err = remote.Wait()
			}
			if err != nil {
				t.Fatal(err)
			}
			var a Arrival
			for ok := false; !ok; {
				if ok, err = remote.ReadNow(got, &a); err != nil {
					t.Fatal(err)
				}
			}
		}), "%v", addr)
	}
}
