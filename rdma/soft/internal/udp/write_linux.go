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

// outgoing holds the buffers of send calls. It is allocated once, so that writing does not allocate.
type outgoing struct {
	fd      int
	header  unix.Msghdr
	one     [1][]byte // buffer of a Write
	vectors [MaxBuffers]unix.Iovec
	to      unix.RawSockaddrInet6 // or an Inet4 at the same address
	control [4]uint64             // one message: UDP_SEGMENT
	size    []byte                // the two bytes of its value
	plain   bool                  // segmentation offload disabled for all destinations
	queue   bool                  // the device's queue is full, not the buffer
	refused map[netip.Addr]struct{}

	refuse syscall.Errno // tests: error of the device for segments
}

// mostRefused is the number of remembered destinations. Beyond it, segmentation offload is disabled for all
// destinations.
const mostRefused = 4096

func (out *outgoing) prepare(fd int) {
	out.fd = fd
	out.header.Iov = &out.vectors[0]
	out.header.Name = (*byte)(unsafe.Pointer(&out.to))
	message := (*unix.Cmsghdr)(unsafe.Pointer(&out.control[0]))
	message.Level, message.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	message.SetLen(unix.CmsgLen(2))
	out.size = (*[4 * 8]byte)(unsafe.Pointer(&out.control))[unix.CmsgLen(0):][:2]
}

// Identification returns the Identification fields that the datagrams of one Write to an IPv4 address have. It changes
// when a Write returns ErrSealAgain.
func (s *Socket) Identification(to netip.Addr) Identification {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.out.segments(to) {
		return Counted
	}
	return Zero
}

// segments reports whether datagrams to an address may use segmentation offload.
func (out *outgoing) segments(to netip.Addr) bool {
	if out.plain || len(out.refused) == 0 {
		return !out.plain
	}
	_, refused := out.refused[to]
	return !refused
}

// Write sends datagrams of segment bytes each, the last of which may be shorter, to a peer: at most MaxSegments
// datagrams and MaxWrite bytes. It does not allocate or block. It returns the number of bytes sent, which is len(b)
// unless there is an error:
//
//   - ErrFull: no room for the rest.
//   - ErrSealAgain: nothing was sent. Returned only for several datagrams to an IPv4 address.
//   - syscall.EMSGSIZE: a datagram is longer than MTU allows.
//   - net.ErrClosed
//
// Network errors are counted and not returned: unreachable peers and ports, missing routes and firewalls.
func (s *Socket) Write(to netip.AddrPort, b []byte, segment int) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.out.one[0] = b
	n, err := s.write(to, s.out.one[:], segment)
	s.out.one[0] = nil
	return n, err
}

// WriteBuffers is Write of up to MaxBuffers buffers, which are split into datagrams as if they were one. The kernel
// gathers them, so that they need not be copied. For unmapped memory it returns syscall.EFAULT.
func (s *Socket) WriteBuffers(to netip.AddrPort, buffers [][]byte, segment int) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.write(to, buffers, segment)
}

func (s *Socket) write(to netip.AddrPort, buffers [][]byte, segment int) (int, error) {
	length := 0
	for _, b := range buffers {
		length += len(b)
	}
	if s.closed {
		return 0, net.ErrClosed
	}
	if segment <= 0 || length > MaxWrite || length > segment*MaxSegments || len(buffers) > MaxBuffers ||
		to.Addr().Is4() != s.addr.Addr().Is4() {
		return 0, s.refuse(to, len(buffers), length, segment)
	}
	s.out.address(to, s.scope)
	if several := length > segment; several && s.out.segments(to.Addr()) {
		errno := s.out.refuse
		if errno == 0 {
			errno = s.out.send(buffers, 0, length, segment)
		}
		switch errno {
		case unix.EIO, unix.EINVAL, unix.EOPNOTSUPP:
			if err := s.withoutSegments(to.Addr(), segment); err != nil {
				return 0, err
			}
		default:
			return s.sent(length, (length+segment-1)/segment, errno)
		}
	}
	for done := 0; done < length; {
		next := min(segment, length-done)
		n, err := s.sent(next, 1, s.out.send(buffers, done, next, 0))
		if err != nil {
			return done, err
		}
		done += n
	}
	return length, nil
}

// refuse returns the error for invalid arguments of a Write.
func (s *Socket) refuse(to netip.AddrPort, buffers, length, segment int) error {
	if to.Addr().Is4() != s.addr.Addr().Is4() {
		return fmt.Errorf("udp: write: %v is not reached from %v: %w", to, s.addr, syscall.EAFNOSUPPORT)
	}
	return fmt.Errorf("udp: write: %d bytes of %d buffers in datagrams of %d: at most %d bytes, %d buffers, %d "+
		"datagrams: %w", length, buffers, segment, MaxWrite, MaxBuffers, MaxSegments, syscall.EINVAL)
}

// withoutSegments records that the device rejected segments to an address. The kernel returns the same errno for
// segments that exceed the path MTU, which is not the device's fault.
func (s *Socket) withoutSegments(to netip.Addr, segment int) error {
	if mtu, err := s.MTU(to); err == nil && segment > mtu {
		return unix.EMSGSIZE
	}
	s.count.refused.Add(1)
	if s.out.refused == nil {
		s.out.refused = map[netip.Addr]struct{}{}
	}
	s.out.refused[to] = struct{}{}
	if len(s.out.refused) > mostRefused {
		s.out.plain, s.out.refused = true, nil
	}
	if to.Is4() {
		return ErrSealAgain
	}
	return nil // the seal does not depend on it: Write continues
}

// address sets the destination of the next datagrams.
func (out *outgoing) address(to netip.AddrPort, scope uint32) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&out.to.Port))[:], to.Port())
	if to.Addr().Is4() {
		out.to.Family = unix.AF_INET
		(*unix.RawSockaddrInet4)(unsafe.Pointer(&out.to)).Addr = to.Addr().As4()
		out.header.Namelen = unix.SizeofSockaddrInet4
		return
	}
	out.to.Family = unix.AF_INET6
	out.to.Addr = to.Addr().As16()
	out.to.Scope_id = scopeFor(to.Addr(), scope)
	out.header.Namelen = unix.SizeofSockaddrInet6
}

// send makes the system call for length bytes of the buffers from an offset on. Segment 0 means a single datagram.
func (out *outgoing) send(buffers [][]byte, offset, length, segment int) syscall.Errno {
	vectors := 0
	for _, b := range buffers {
		if offset >= len(b) {
			offset -= len(b)
			continue
		}
		b = b[offset:min(len(b), offset+length)]
		offset, length = 0, length-len(b)
		out.vectors[vectors].Base = unsafe.SliceData(b)
		out.vectors[vectors].SetLen(len(b))
		if vectors++; length == 0 {
			break
		}
	}
	out.header.SetIovlen(vectors)
	if segment > 0 {
		binary.NativeEndian.PutUint16(out.size, uint16(segment))
		out.header.Control = (*byte)(unsafe.Pointer(&out.control))
		out.header.SetControllen(unix.CmsgSpace(2))
	} else {
		out.header.Control = nil
		out.header.SetControllen(0)
	}
	errno := unix.EINTR
	for errno == unix.EINTR {
		// The call never blocks, so it bypasses Go's scheduler, which could hand the processor to another thread.
		_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(out.fd), uintptr(unsafe.Pointer(&out.header)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	clear(out.vectors[:vectors])
	return errno
}

// sent counts the result of a system call, and returns Write's result.
func (s *Socket) sent(bytes, datagrams int, errno syscall.Errno) (int, error) {
	switch {
	case errno == 0:
		s.count.writes.Add(1)
		s.count.sent.Add(uint64(datagrams))
	case errno == unix.EAGAIN || errno == unix.ENOBUFS || errno == unix.ENOMEM:
		s.count.full.Add(1)
		s.out.queue = errno != unix.EAGAIN
		return 0, ErrFull
	case unreachable(errno):
		s.count.unreachable.Add(1)
	default:
		return 0, errno
	}
	return bytes, nil
}

// unreachable reports whether an errno is a network error of this datagram or an earlier one.
func unreachable(errno syscall.Errno) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN, unix.EPERM, unix.EACCES,
		unix.EPROTO, unix.ENOPROTOOPT, unix.EADDRNOTAVAIL:
		return true
	}
	return false
}

// moment is the time that WaitWrite waits for the queue of a device, which sends no notification.
const moment = 100 * time.Microsecond

// WaitWrite waits for room after ErrFull. It returns ErrFull after a timeout, and net.ErrClosed after Close.
func (s *Socket) WaitWrite(long time.Duration) error {
	for end := time.Now().Add(long); ; {
		s.writing.Lock()
		closed, queue := s.closed, s.out.queue
		room := !closed && !queue && ready(s.out.fd, unix.POLLOUT, time.Millisecond)
		s.out.queue = false
		s.writing.Unlock()
		switch {
		case closed:
			return net.ErrClosed
		case queue:
			time.Sleep(min(moment, long))
			return nil
		case room:
			return nil
		case !time.Now().Before(end):
			return ErrFull
		}
	}
}
