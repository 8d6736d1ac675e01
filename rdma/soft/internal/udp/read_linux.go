// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// incoming holds the buffers of receive calls. It is allocated once, so that reading does not allocate.
type incoming struct {
	header  unix.Msghdr
	vector  unix.Iovec
	from    unix.RawSockaddrInet6 // or an Inet4 at the same address
	control [16]uint64            // words, for the alignment of control messages
	n       int
	errno   syscall.Errno
	receive func(fd uintptr) bool
}

func (in *incoming) bytes() []byte {
	return (*[16 * 8]byte)(unsafe.Pointer(&in.control))[:]
}

func (in *incoming) prepare() {
	in.header.Iov = &in.vector
	in.header.SetIovlen(1)
	in.header.Name = (*byte)(unsafe.Pointer(&in.from))
	in.header.Control = &in.bytes()[0]
	in.receive = func(fd uintptr) bool {
		for {
			in.header.Namelen = unix.SizeofSockaddrInet6
			in.header.SetControllen(len(in.bytes()))
			// The call never blocks, so it bypasses Go's scheduler, which would take most of the time of an empty read.
			n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&in.header)), unix.MSG_DONTWAIT)
			if errno == unix.EAGAIN {
				return false
			}
			if errno == unix.EINTR {
				continue
			}
			in.n, in.errno = int(n), errno
			return true
		}
	}
}

// Read waits for datagrams and copies them to b, which should have MaxRead bytes. They follow each other, come from one
// sender, and have a.Segment bytes each, except the last. It does not allocate. After Close, it returns net.ErrClosed.
// Network errors are counted and not returned.
func (s *Socket) Read(b []byte, a *Arrival) error {
	if len(b) == 0 {
		return fmt.Errorf("udp: read: no buffer: %w", syscall.EINVAL)
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		if got, err := s.ReadNow(b, a); got || err != nil {
			return err
		}
		if err := s.Wait(); err != nil {
			return err
		}
	}
}

// Wait waits until a datagram can be read, or until Close, which makes it return net.ErrClosed. ReadNow then reads the
// datagram, unless another goroutine did. While no goroutine is in Wait or Read, datagrams wake no thread of the
// process.
func (s *Socket) Wait() error {
	s.polling.Lock()
	if s.unreadable {
		s.polling.Unlock()
		return net.ErrClosed
	}
	err := s.watch.arm()
	s.polling.Unlock()
	if err == nil {
		err = s.watch.wait()
	}
	if err != nil {
		return s.ended(err)
	}
	return nil
}

// ended returns the error of a wait, which is net.ErrClosed after Close.
func (s *Socket) ended(err error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	return fmt.Errorf("udp: wait: %w", err)
}

// ReadNow is Read without waiting, and reports whether it read datagrams. To process datagrams in the order of arrival,
// call ReadNow under the lock of the processing, both from the goroutine that calls Wait and from those that poll.
func (s *Socket) ReadNow(b []byte, a *Arrival) (bool, error) {
	if len(b) == 0 {
		return false, fmt.Errorf("udp: read: no buffer: %w", syscall.EINVAL)
	}
	s.polling.Lock()
	defer s.polling.Unlock()
	if s.unreadable {
		return false, net.ErrClosed
	}
	s.in.into(b)
	defer s.in.into(nil)
	for s.in.receive(uintptr(s.out.fd)) {
		if got, err := s.arrived(&s.in, a); got || err != nil {
			return got, err
		}
	}
	return false, nil
}

// Linger waits in the kernel until a datagram can be read, or for at most a time.
func (s *Socket) Linger(long time.Duration) {
	s.polling.Lock()
	defer s.polling.Unlock()
	if s.unreadable {
		return
	}
	one, limit := [1]unix.PollFd{{Fd: int32(s.out.fd), Events: unix.POLLIN}}, unix.NsecToTimespec(int64(long))
	_, _ = unix.Ppoll(one[:], &limit, nil)
}

// Yield lets other runnable threads run.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// into sets the buffer to read into.
func (in *incoming) into(b []byte) {
	in.vector.Base = unsafe.SliceData(b)
	in.vector.SetLen(len(b))
}

// arrived describes and counts the datagrams of a system call.
func (s *Socket) arrived(in *incoming, a *Arrival) (bool, error) {
	switch {
	case unreachable(in.errno):
		s.count.unreachable.Add(1)
	case in.errno == unix.ENOBUFS || in.errno == unix.ENOMEM:
		// The kernel had no memory for these datagrams. Continue with later ones.
	case in.errno != 0:
		return false, fmt.Errorf("udp: read: %w", in.errno)
	case in.header.Flags&unix.MSG_TRUNC != 0:
		s.count.truncated.Add(1)
	case in.n == 0:
		s.count.empty.Add(1)
	case in.decode(a):
		s.count.reads.Add(1)
		s.count.received.Add(uint64((a.N + a.Segment - 1) / a.Segment))
		return true, nil
	}
	return false, nil
}

// ready waits until a descriptor can be read (POLLIN) or written (POLLOUT), and reports whether it can.
func ready(fd int, events int16, limit time.Duration) bool {
	one := [1]unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(one[:], int(limit.Milliseconds()))
	return err == nil && n > 0
}

// decode reads the sender's address and the control messages.
func (in *incoming) decode(a *Arrival) bool {
	*a = Arrival{N: in.n, Segment: in.n}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&in.from.Port))[:])
	switch in.from.Family {
	case unix.AF_INET:
		from := (*unix.RawSockaddrInet4)(unsafe.Pointer(&in.from))
		a.From = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), port)
	case unix.AF_INET6:
		a.From = netip.AddrPortFrom(netip.AddrFrom16(in.from.Addr), port)
	default:
		return false
	}
	rest := in.bytes()
	rest = rest[:min(int(in.header.Controllen), len(rest))]
	for len(rest) >= unix.SizeofCmsghdr {
		header, data, next, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			break
		}
		rest = next
		value := 0
		switch {
		case len(data) >= 4:
			value = int(int32(binary.NativeEndian.Uint32(data)))
		case len(data) > 0:
			value = int(data[0])
		}
		switch {
		case header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && value > 0:
			a.Segment = min(value, in.n)
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TTL,
			header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_HOPLIMIT:
			a.TTL = uint8(value)
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TOS,
			header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_TCLASS:
			a.TOS = uint8(value)
		}
	}
	return true
}
