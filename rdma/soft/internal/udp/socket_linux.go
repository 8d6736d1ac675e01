// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket is a UDP socket of one address, or the socket of a multicast group.
type Socket struct {
	addr  netip.AddrPort
	scope uint32 // index of the interface, for link-local addresses and groups
	o     Options
	watch *watch // watches out.fd
	count counters

	reading sync.Mutex // serializes Read

	polling    sync.Mutex // also keeps the descriptor open
	in         incoming
	unreadable bool   // closed
	overflows  uint64 // final value, set by Close

	writing sync.Mutex // guards the rest, and keeps the descriptor open
	out     outgoing
	closed  bool
	group   *group // for Options.Share
}

func open(at netip.AddrPort, o Options) (*Socket, error) {
	s := &Socket{o: o}
	if zone := at.Addr().Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, fmt.Errorf("zone %q: %w", zone, err)
		}
		s.scope = uint32(i.Index)
	}
	before := func(fd int) error {
		if at.Addr().Is4() {
			return unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, at.Addr().As4())
		}
		if i, err := InterfaceOf(at.Addr()); err == nil {
			s.scope = uint32(i.Index)
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, i.Index)
		}
		return nil // bind reports what is wrong with the address
	}
	if o.Share {
		err := s.join(at, before)
		if !errors.Is(err, unix.ENOPROTOOPT) {
			return s, err
		}
		s.o.Share, s.group = false, nil // the kernel (or its emulation) lacks steering: do not share
	}
	return s, s.bind(at, before)
}

// Join opens a socket that receives datagrams to a multicast group on this socket's interface and port. Close leaves
// the group. Several sockets, in several processes, may be members, and each gets every datagram, including those from
// this machine. To send to the group, use the socket that Open returned.
func (s *Socket) Join(group netip.Addr) (*Socket, error) {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() || group.Is4() != s.addr.Addr().Is4() {
		return nil, fmt.Errorf("udp: join %v: not a multicast group of %s: %w", group, family(s.addr.Addr()),
			syscall.EINVAL)
	}
	i, err := InterfaceOf(s.addr.Addr())
	if err != nil {
		return nil, fmt.Errorf("udp: join %v: %w", group, err)
	}
	g := &Socket{o: s.o, scope: uint32(i.Index)}
	g.o.Share = false // all members get multicast datagrams
	at := netip.AddrPortFrom(group, s.addr.Port())
	err = g.bind(at, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if group.Is4() {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0); err != nil {
				return err
			}
			return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
				&unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(i.Index)})
		}
		return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
			&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(i.Index)})
	})
	if err != nil {
		return nil, fmt.Errorf("%w (joining a group over %s)", explain(at, err), i.Name)
	}
	return g, nil
}

// bind creates the socket, sets the common options, calls before for the rest, and binds it.
func (s *Socket) bind(at netip.AddrPort, before func(fd int) error) error {
	domain := unix.AF_INET
	if at.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err = s.setOptions(fd, at.Addr()); err == nil {
		err = os.NewSyscallError("setsockopt", before(fd))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(at, s.scope)))
	}
	if err == nil {
		err = s.start(fd, at)
	}
	if err != nil {
		unix.Close(fd)
	}
	return err
}

// start prepares reading and writing of a bound socket.
func (s *Socket) start(fd int, at netip.AddrPort) error {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	port := at.Port()
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		port = uint16(name.Port)
	case *unix.SockaddrInet6:
		port = uint16(name.Port)
	}
	s.addr = netip.AddrPortFrom(at.Addr(), port)
	s.in.prepare()
	s.out.prepare(fd)
	s.watch, err = newWatch(fd)
	return err
}

// setOptions sets the options of both kinds of sockets. Options missing in older kernels only affect speed; the two
// without which packets are lost cause errors.
func (s *Socket) setOptions(fd int, addr netip.Addr) error {
	segments := !s.o.Plain && unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil
	s.out.plain = !segments
	if !s.o.Plain && (!s.group.hasOthers() || addr.IsLoopback()) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	}
	for _, o := range []struct{ plain, forced int }{
		{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE},
	} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.forced, s.o.Buffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.plain, s.o.Buffer)
		}
	}
	// The kernel rejects GSO without checksums. Without GSO they are disabled, because the ICRC is sufficient.
	if addr.Is4() {
		if !segments {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, syscall.SO_NO_CHECK, 1)
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
		// Packets must not be fragmented: only then is their Identification known.
		return os.NewSyscallError("setsockopt IP_MTU_DISCOVER",
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE))
	}
	if !segments {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE); err != nil {
		return os.NewSyscallError("setsockopt IPV6_MTU_DISCOVER", err)
	}
	// Soft-RoCE sends checksum 0, which IPv6 drops without this option.
	return os.NewSyscallError("setsockopt UDP_NO_CHECK6_RX",
		unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1))
}

func sockaddr(a netip.AddrPort, scope uint32) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: scopeFor(a.Addr(), scope)}
}

// scopeFor returns the interface index for an address that needs one.
func scopeFor(a netip.Addr, scope uint32) uint32 {
	if a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || a.IsInterfaceLocalMulticast() {
		return scope
	}
	return 0
}

// Addr returns the address and port that the socket is bound to.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Buffer returns the sizes of the kernel's receive and send buffers in bytes. They include the kernel's overhead: for a
// datagram of 1 KiB, about as much again.
func (s *Socket) Buffer() (receive, send int) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return 0, 0
	}
	receive, _ = unix.GetsockoptInt(s.out.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	send, _ = unix.GetsockoptInt(s.out.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	return receive, send
}

// Member returns the socket's number in the group of Options.Share, or 0 without one.
func (s *Socket) Member() int {
	if s.group == nil {
		return 0
	}
	return s.group.member
}

// IsShared reports whether other processes may use the address too.
func (s *Socket) IsShared() bool { return s.group != nil }

// Counters returns the socket's counters. It may be called at any time.
func (s *Socket) Counters() Counters {
	c := s.count.values()
	s.polling.Lock()
	defer s.polling.Unlock()
	if c.Overflows = s.overflows; !s.unreadable {
		c.Overflows = drops(s.out.fd)
	}
	return c
}

// drops returns the kernel's counter of dropped datagrams, like /proc/net/udp and SO_RXQ_OVFL, without a cost per
// datagram and without waiting for the next one.
func drops(fd int) uint64 {
	const last = 8 // SK_MEMINFO_DROPS
	var info [last + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 { // before Linux 4.12
		return 0
	}
	return uint64(info[last])
}

// MTU returns the maximum payload of a datagram to an address, as far as this machine knows the path.
func (s *Socket) MTU(to netip.Addr) (int, error) {
	to = to.Unmap()
	level, option, domain := unix.IPPROTO_IP, unix.IP_MTU, unix.AF_INET
	if to.Is6() {
		level, option, domain = unix.IPPROTO_IPV6, unix.IPV6_MTU, unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(s.addr.Addr(), 0), s.scope)); err == nil {
		err = unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, Port), s.scope))
	}
	if err != nil {
		return 0, fmt.Errorf("udp: path from %v to %v: %w", s.addr.Addr(), to, err)
	}
	mtu, err := unix.GetsockoptInt(fd, level, option)
	return min(mtu-headers(to), MaxWrite), os.NewSyscallError("getsockopt IP_MTU", err)
}

// Close closes the socket. Waiting Reads return net.ErrClosed.
func (s *Socket) Close() error {
	s.writing.Lock()
	if s.closed {
		s.writing.Unlock()
		return nil
	}
	s.closed = true
	s.group.close()
	s.writing.Unlock()
	s.polling.Lock()
	defer s.polling.Unlock()
	s.unreadable, s.overflows = true, drops(s.out.fd)
	err := s.watch.close()
	return errors.Join(err, os.NewSyscallError("close", unix.Close(s.out.fd)))
}
