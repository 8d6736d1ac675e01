// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// program calls the functions as a C program does.
type program struct {
	t *testing.T
	*Sockets
}

func newProgram(t *testing.T) program {
	f, err := soft.New(soft.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return program{t, New(func() (runtime.Backend, error) { return f, nil })}
}

// at returns an address for C. Goroutine stacks move and unreferenced memory is freed, so it keeps all of it.
func at[T any](p *T) uint64 {
	kept.Store(p, nil)
	return uint64(uintptr(unsafe.Pointer(p)))
}

var kept sync.Map

// call returns the result as a C int.
func (p program) call(name string, args ...uint64) (int, error) {
	n, errno := p.Function(name)(args)
	for errno == nap.Asleep {
		attached := ibv.Ptr[nap.Nap](n).Deref()
		var b [8]byte
		var err error
		for again := true; again; again = err == unix.EINTR { // by a signal of Go's runtime
			if attached.FDs != nil {
				_, err = unix.Poll(unsafe.Slice((*unix.PollFd)(attached.FDs), attached.Number), int(attached.Timeout))
			} else {
				_, err = unix.Read(int(attached.File), b[:])
			}
		}
		slept, _ := err.(syscall.Errno)
		n, errno = nap.Awake([]uint64{attached.ID, uint64(slept)})
	}
	if errno != 0 {
		assert.EqualValues(p.t, -1, int64(n))
		return -1, errno
	}
	return int(int64(n)), nil
}

func (p program) must(name string, args ...uint64) int {
	p.t.Helper()
	n, err := p.call(name, args...)
	require.NoError(p.t, err, name)
	return n
}

func (p program) name(b []byte) netip.AddrPort {
	a, err := parseAddress(b)
	require.NoError(p.t, err)
	return a
}

// listen returns a listening socket and its address.
func (p program) listen() (fd uint64, address []byte) {
	fd = uint64(p.must("rsocket", unix.AF_INET, unix.SOCK_STREAM, 0))
	any := formatAddress(unix.AF_INET, netip.MustParseAddrPort("127.0.0.1:0"))
	p.must("rbind", fd, at(&any[0]), uint64(len(any)))
	p.must("rlisten", fd, 5)
	address = make([]byte, 16)
	n := uint32(16)
	p.must("rgetsockname", fd, at(&address[0]), at(&n))
	assert.EqualValues(p.t, 16, n)
	return fd, address
}

// pair returns both ends of a connection.
func (p program) pair() (client, server uint64) {
	l, address := p.listen()
	client = uint64(p.must("rsocket", unix.AF_INET, unix.SOCK_STREAM, 0))
	p.must("rconnect", client, at(&address[0]), uint64(len(address)))
	server = uint64(p.must("raccept", l, 0, 0))
	p.must("rclose", l)
	return client, server
}

// TestEnds checks that the ends of a connection can receive data, wait for data, and detect the end of the data.
func TestEnds(t *testing.T) {
	p := newProgram(t)
	a, b := p.pair()
	assert.Equal(t, 5, p.must("rsend", a, at(&[]byte("hello")[0]), 5, 0))
	got := make([]byte, 10)
	assert.Equal(t, 3, p.must("rrecv", b, at(&got[0]), 3, unix.MSG_PEEK))
	assert.Equal(t, 5, p.must("rrecv", b, at(&got[0]), 10, 0))
	assert.Equal(t, "hello", string(got[:5]))
	_, err := p.call("rrecv", b, at(&got[0]), 10, unix.MSG_DONTWAIT)
	assert.Equal(t, unix.EAGAIN, err)
	later := time.AfterFunc(20*time.Millisecond, func() {
		for range 2 {
			p.must("rwrite", a, at(&[]byte("abcde")[0]), 5)
			time.Sleep(10 * time.Millisecond)
		}
	})
	defer later.Stop()
	assert.Equal(t, 10, p.must("rrecv", b, at(&got[0]), 10, unix.MSG_WAITALL))
	assert.Equal(t, "abcdeabcde", string(got))
	p.must("rshutdown", a, unix.SHUT_WR)
	assert.Equal(t, 0, p.must("rread", b, at(&got[0]), 10))
	_, err = p.call("rsend", a, at(&got[0]), 1, 0)
	assert.Equal(t, unix.EPIPE, err)
	assert.Equal(t, 1, p.must("rsend", b, at(&got[0]), 1, 0), "the other direction is open")
	assert.Equal(t, 1, p.must("rread", a, at(&got[0]), 10))
	p.must("rshutdown", a, unix.SHUT_RD)
	assert.Equal(t, 0, p.must("rread", a, at(&got[0]), 10))
	p.must("rclose", a)
	p.must("rclose", b)
	assert.EqualValues(t, unix.EBADF, p.must("rclose", b), "rclose returns the error number")
	_, err = p.call("rread", b, at(&got[0]), 10)
	assert.Equal(t, unix.EBADF, err)
}

// TestNonblocking checks that a program that only polls can connect, fill the connection, and empty it.
func TestNonblocking(t *testing.T) {
	p := newProgram(t)
	l, address := p.listen()
	p.must("rfcntl", l, unix.F_SETFL, unix.O_NONBLOCK)
	_, err := p.call("raccept", l, 0, 0)
	assert.Equal(t, unix.EAGAIN, err)
	a := uint64(p.must("rsocket", unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0))
	assert.NotZero(t, p.must("rfcntl", a, unix.F_GETFL, 0)&unix.O_NONBLOCK)
	_, err = p.call("rconnect", a, at(&address[0]), uint64(len(address)))
	assert.Equal(t, unix.EINPROGRESS, err)
	assert.Equal(t, unix.POLLIN, p.poll(l, unix.POLLIN, 5000))
	b := uint64(p.must("raccept", l, 0, 0))
	assert.Equal(t, unix.POLLOUT, p.poll(a, unix.POLLIN|unix.POLLOUT, 5000))
	assert.Zero(t, p.option(a, unix.SOL_SOCKET, unix.SO_ERROR))
	_, err = p.call("rconnect", a, at(&address[0]), uint64(len(address)))
	assert.Equal(t, unix.EISCONN, err)
	assert.Zero(t, p.poll(b, unix.POLLIN, 0))
	sent, some := 0, make([]byte, 100_000)
	for full, end := false, time.Now().Add(20*time.Second); !full; {
		n, err := p.call("rsend", a, at(&some[0]), uint64(len(some)), 0)
		if err == unix.EAGAIN { // also until the peer's device has received the data
			require.True(t, time.Now().Before(end), "%d bytes sent", sent)
			full = p.poll(a, unix.POLLOUT, 20) == 0 && sent > 128<<10
			continue
		}
		require.NoError(t, err)
		sent += n
	}
	assert.Equal(t, unix.POLLIN, p.poll(b, unix.POLLIN, 5000))
	for left := sent; left > 0; {
		left -= p.must("rrecv", b, at(&some[0]), uint64(len(some)), 0)
	}
	assert.Equal(t, unix.POLLOUT, p.poll(a, unix.POLLOUT, 5000))
	p.must("rclose", b)
	assert.Equal(t, unix.POLLIN|unix.POLLHUP, p.poll(a, unix.POLLIN, 5000))
	p.must("rclose", a)
	p.must("rclose", l)
	assert.Equal(t, unix.POLLNVAL, p.poll(a, unix.POLLIN, 0))
}

// poll returns the events of one socket.
func (p program) poll(fd uint64, events int16, milliseconds uint64) int {
	f := unix.PollFd{Fd: int32(fd), Events: events}
	n := p.must("rpoll", at(&f), 1, milliseconds)
	assert.Equal(p.t, f.Revents != 0, n == 1)
	return int(f.Revents)
}

func (p program) option(fd uint64, level, name int) int {
	p.t.Helper()
	var v int32
	n := uint32(4)
	p.must("rgetsockopt", fd, uint64(level), uint64(name), at(&v), at(&n))
	return int(v)
}

// TestPollOthers checks calls with sockets and other descriptors, and rselect of both.
func TestPollOthers(t *testing.T) {
	p := newProgram(t)
	a, b := p.pair()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	fds := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}, {Fd: int32(b), Events: unix.POLLIN}, {Fd: -1}}
	started := time.Now()
	assert.Equal(t, 0, p.must("rpoll", at(&fds[0]), 3, 30))
	assert.GreaterOrEqual(t, time.Since(started), 30*time.Millisecond)
	time.AfterFunc(10*time.Millisecond, func() { unix.Write(pipe[1], []byte{1}) })
	assert.Equal(t, 1, p.must("rpoll", at(&fds[0]), 3, 5000))
	assert.EqualValues(t, unix.POLLIN, fds[0].Revents)
	assert.Zero(t, fds[1].Revents)
	p.must("rsend", a, at(&[]byte{1}[0]), 1, 0)
	var read, write unix.FdSet
	read.Set(pipe[0])
	read.Set(int(b))
	write.Set(int(b))
	most := uint64(max(pipe[0], int(b)) + 1)
	require.Eventually(t, func() bool { return p.poll(b, unix.POLLIN, 0) != 0 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, 3, p.must("rselect", most, at(&read), at(&write), 0, 0))
	assert.True(t, read.IsSet(pipe[0]) && read.IsSet(int(b)) && write.IsSet(int(b)))
	p.must("rrecv", b, at(&[]byte{1}[0]), 1, 0)
	unix.Read(pipe[0], make([]byte, 1))
	none := unix.Timeval{Usec: 1000}
	write.Zero()
	assert.Equal(t, 0, p.must("rselect", most, at(&read), at(&write), 0, at(&none)))
	assert.False(t, read.IsSet(pipe[0]) || read.IsSet(int(b)))
	p.must("rclose", a)
	p.must("rclose", b)
}

// TestCloseWakesWaiters checks that a thread that waits for a socket gets EBADF when another thread closes it.
func TestCloseWakesWaiters(t *testing.T) {
	p := newProgram(t)
	a, b := p.pair()
	l, _ := p.listen()
	var closing sync.WaitGroup // the other thread may still be in rclose when this one gets EBADF
	closing.Go(func() {
		time.Sleep(20 * time.Millisecond)
		p.must("rclose", a)
		p.must("rclose", l)
	})
	_, err := p.call("rread", a, at(&make([]byte, 1)[0]), 1)
	assert.Equal(t, unix.EBADF, err)
	_, err = p.call("raccept", l, 0, 0)
	assert.Equal(t, unix.EBADF, err)
	closing.Wait()
	p.must("rclose", b)
}

// TestErrors checks the errors for sockets that are not connected, addresses without a listener, and addresses in use.
func TestErrors(t *testing.T) {
	p := newProgram(t)
	_, err := p.call("rsocket", unix.AF_UNIX, unix.SOCK_STREAM, 0)
	assert.Equal(t, unix.ENOTSUP, err)
	a := uint64(p.must("rsocket", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP))
	some := make([]byte, 16)
	for _, name := range []string{"rread", "rwrite", "riounmap"} {
		_, err = p.call(name, a, at(&some[0]), 1)
		assert.Equal(t, map[bool]error{true: unix.EINVAL, false: unix.ENOTCONN}[name == "riounmap"], err, name)
	}
	_, err = p.call("rgetpeername", a, at(&some[0]), at(&[]uint32{16}[0]))
	assert.Equal(t, unix.ENOTCONN, err)
	_, err = p.call("raccept", a, 0, 0)
	assert.Equal(t, unix.EINVAL, err)
	unused := formatAddress(unix.AF_INET, netip.MustParseAddrPort("127.0.0.1:9"))
	_, err = p.call("rconnect", a, at(&unused[0]), uint64(len(unused)))
	assert.Equal(t, unix.ECONNREFUSED, err)
	assert.NotZero(t, p.poll(a, unix.POLLOUT, 0)&unix.POLLERR)
	p.must("rclose", a)
	l, address := p.listen()
	b := uint64(p.must("rsocket", unix.AF_INET6, unix.SOCK_STREAM, 0))
	_, err = p.call("rbind", b, at(&address[0]), uint64(len(address)))
	assert.Equal(t, unix.EADDRINUSE, err)
	p.must("rclose", b)
	p.must("rclose", l)
}

// TestNames checks that a bound socket connects from its port, and that an IPv6 socket returns IPv4-mapped addresses.
func TestNames(t *testing.T) {
	p := newProgram(t)
	l, address := p.listen()
	a := uint64(p.must("rsocket", unix.AF_INET6, unix.SOCK_STREAM, 0))
	local := formatAddress(unix.AF_INET6, netip.MustParseAddrPort("127.0.0.1:4242"))
	p.must("rbind", a, at(&local[0]), uint64(len(local)))
	p.must("rconnect", a, at(&address[0]), uint64(len(address)))
	from, n := make([]byte, 28), uint32(28)
	b := uint64(p.must("raccept", l, at(&from[0]), at(&n)))
	assert.EqualValues(t, 16, n)
	assert.Equal(t, "127.0.0.1:4242", p.name(from[:n]).String())
	n = 28
	p.must("rgetpeername", a, at(&from[0]), at(&n))
	assert.EqualValues(t, 28, n)
	assert.Equal(t, p.name(address), p.name(from))
	assert.EqualValues(t, 0xff, from[18], "mapped")
	n = 4
	p.must("rgetsockname", b, at(&from[0]), at(&n))
	assert.EqualValues(t, 16, n, "the full length")
	for _, fd := range []uint64{a, b, l} {
		p.must("rclose", fd)
	}
}

// TestOptions checks that an option's value changes when it is set, and that unknown options are rejected.
func TestOptions(t *testing.T) {
	p := newProgram(t)
	a := uint64(p.must("rsocket", unix.AF_INET, unix.SOCK_STREAM, 0))
	for _, o := range []option{{unix.SOL_SOCKET, unix.SO_RCVBUF}, {unix.SOL_SOCKET, unix.SO_SNDBUF},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_NODELAY}, {solRDMA, rdmaSQSize}} {
		assert.NotEqual(t, 20_000, p.option(a, o.level, o.name))
		v := int32(20_000)
		p.must("rsetsockopt", a, uint64(o.level), uint64(o.name), at(&v), 4)
		assert.Equal(t, 20_000, p.option(a, o.level, o.name))
	}
	_, err := p.call("rsetsockopt", a, unix.SOL_SOCKET, unix.SO_REUSEPORT, at(&[]int32{1}[0]), 4)
	assert.Equal(t, unix.ENOTSUP, err)
	_, err = p.call("rsetsockopt", a, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0, 0)
	assert.Equal(t, unix.EINVAL, err)
	p.must("rclose", a)
}

// TestLists checks that the data of one list can be received in a list with other lengths.
func TestLists(t *testing.T) {
	p := newProgram(t)
	a, b := p.pair()
	list := func(pieces ...[]byte) []unix.Iovec {
		var all []unix.Iovec
		for _, one := range pieces {
			all = append(all, unix.Iovec{Base: &one[0], Len: uint64(len(one))})
		}
		return all
	}
	sent := list([]byte("one"), []byte("two"), []byte("three"))
	assert.Equal(t, 11, p.must("rwritev", a, at(&sent[0]), 3))
	first, second := make([]byte, 4), make([]byte, 20)
	got := list(first, second)
	assert.Equal(t, 11, p.must("rreadv", b, at(&got[0]), 2))
	assert.Equal(t, "onetwothree", string(first)+string(second[:7]))
	m := unix.Msghdr{Iov: &sent[0], Iovlen: 2}
	assert.Equal(t, 6, p.must("rsendmsg", b, at(&m), 0))
	m.Iov = &got[0]
	assert.Equal(t, 6, p.must("rrecvmsg", a, at(&m), 0))
	assert.Equal(t, "onetwo", string(first)+string(second[:2]))
	m.Control, m.Controllen = &first[0], 1
	_, err := p.call("rsendmsg", a, at(&m), 0)
	assert.Equal(t, unix.ENOTSUP, err)
	p.must("rclose", a)
	p.must("rclose", b)
}

// TestMaps checks that the peer can write to mapped memory until it is unmapped.
func TestMaps(t *testing.T) {
	p := newProgram(t)
	l, address := p.listen()
	a := uint64(p.must("rsocket", unix.AF_INET, unix.SOCK_STREAM, 0))
	p.must("rconnect", a, at(&address[0]), uint64(len(address)))
	b := uint64(p.must("raccept", l, 0, 0))
	peerBuf := make([]byte, 1000)
	for range 300 { // entries are reused
		assert.Equal(t, 77, p.must("riomap", a, at(&peerBuf[0]), 1000, unix.PROT_WRITE, 0, 77))
		p.must("riounmap", a, at(&peerBuf[0]), 1000)
	}
	assert.EqualValues(t, at(&peerBuf[0]), p.must("riomap", a, at(&peerBuf[0]), 1000, unix.PROT_WRITE, 0, ^uint64(0)))
	p.must("rsend", a, at(&[]byte{1}[0]), 1, 0)
	p.must("rrecv", b, at(&make([]byte, 1)[0]), 1, 0)
	some := []byte("mapped")
	assert.Equal(t, 6, p.must("riowrite", b, at(&some[0]), 6, at(&peerBuf[0])+10, 0))
	p.must("rsend", b, at(&some[0]), 1, 0)
	p.must("rrecv", a, at(&make([]byte, 1)[0]), 1, 0)
	assert.Equal(t, "mapped", string(peerBuf[10:16]))
	_, err := p.call("riowrite", b, at(&some[0]), 6, 5, 0)
	assert.Equal(t, unix.EINVAL, err)
	_, err = p.call("riounmap", a, at(&peerBuf[0]), 999)
	assert.Equal(t, unix.EINVAL, err)
	for _, fd := range []uint64{a, b, l} {
		p.must("rclose", fd)
	}
}

// TestZones checks that sin6_scope_id is the zone of a link-local address, in both directions.
func TestZones(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	require.NoError(t, err)
	want := netip.AddrPortFrom(netip.MustParseAddr("fe80::1").WithZone(lo.Name), 7)
	b := formatAddress(unix.AF_INET6, want)
	assert.EqualValues(t, 1, binary.NativeEndian.Uint32(b[24:]))
	got, err := parseAddress(b)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}
