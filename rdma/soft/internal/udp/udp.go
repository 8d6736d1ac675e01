// SPDX-License-Identifier: BSD-2-Clause

// Package udp implements the sockets of a RoCEv2 wire: UDP sockets of one address each, which send and receive many
// datagrams per system call where the kernel supports it.
//
// The checksum of RoCE packets (ICRC) covers the Identification of the IPv4 header, which a UDP socket can neither set
// nor read; IPv6 has no such field. [Socket.Identification] returns the kernel's choice:
//
//   - Linux: 0, and 0, 1, 2 … in the datagrams that one Write sends by segmentation offload (GSO).
//   - macOS: 0, because fragmentation is disabled. This is from its source and untested.
//   - Windows and others: unknown. Use IPv6, or IPv4 if the receiver computes the
//     Identification itself, as package packet does: the ICRC is linear in it. Soft-RoCE and adapters do not.
//
// On systems other than Linux, a system call transfers one datagram, and the path MTU is that of the interface.
package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// AnyPort in Options.Port lets the kernel choose a port. It is for tests.
const AnyPort = -1

const (
	// MaxRead is the maximum size of a Read. A shorter buffer loses datagrams.
	MaxRead = 1 << 16
	// MaxWrite is the maximum size of a Write, by the IP length field with IPv6 headers.
	MaxWrite = 65535 - 40 - 8
	// MaxSegments is the maximum number of datagrams of a Write.
	MaxSegments = 64
	// MaxBuffers is the maximum number of buffers of a WriteBuffers: headers, data, trailer and one more for each
	// datagram.
	MaxBuffers = 4 * MaxSegments
)

var (
	// ErrFull means that the socket's send buffer or the device's queue is full. WaitWrite waits for room.
	ErrFull = errors.New("udp: send buffer is full")
	// ErrSealAgain means that Identification has changed for this destination, because the device does not support
	// segmentation offload. Nothing was sent. Seal the datagrams with Identification 0, and write them again.
	ErrSealAgain = errors.New("udp: the device does not support segmentation offload: seal each datagram with " +
		"Identification 0")
)

// Options configure a socket. The zero value is for RoCE.
type Options struct {
	Port   int  // 0: the constant Port
	Plain  bool // one datagram per system call: no segmentation offload, neither to send nor to receive
	Buffer int  // requested size of the receive and send buffers in bytes; 0: 16 MiB. The system may grant less

	// Share lets up to MaxMembers sockets, in processes of one user, use this address and port on Linux; on other
	// systems it does nothing. Each has a unique number, Socket.Member, which does not change. A packet goes to the
	// member whose number is in the highest 6 bits
	//
	//   - of the packet's destination queue pair number,
	//   - if that is 1, of the communication ID by which the receiver of a message of the connection manager knows the
	//     connection (SIDR_REP: the request),
	//
	// and otherwise to one of the members, the lead: connection requests (REQ, SIDR_REQ) and all other MADs. Claimed
	// returns the member that a request is for. So members must use queue pair numbers and IDs that contain their
	// number.
	//
	// Packets for unused numbers go to any member. The datagrams of one Write must be for the same member. When the
	// lead closes its socket or ends, another member becomes the lead within milliseconds. Packets for any other member
	// that has ended are lost until the next process that opens the address takes its number.
	Share bool
}

const (
	memberBits = 6
	// MaxMembers is the maximum number of sockets that share an address. It excludes the multicast queue pair number
	// 0xffffff.
	MaxMembers = 1<<memberBits - 1
)

// MemberOfQP returns the member of a 24-bit queue pair number.
func MemberOfQP(number uint32) int { return int(number >> memberShift) }

// QPsOf returns the lowest queue pair number of a member; the highest is QPsOf of the next member, less 1.
func QPsOf(member int) uint32 { return uint32(member) << memberShift }

// IDOf returns a member's communication ID for a number.
func IDOf(member int, number uint32) uint32 { return uint32(member)<<idShift | number&(1<<idShift-1) }

const (
	memberShift = 24 - memberBits
	idShift     = 32 - memberBits
)

// Arrival describes the datagrams of one Read, which follow each other and come from one sender.
type Arrival struct {
	N       int            // bytes
	Segment int            // bytes of each datagram; the last may be shorter
	From    netip.AddrPort // without a zone
	TTL     uint8          // hop limit of the first datagram, on Linux
	TOS     uint8          // or traffic class of the first datagram, on Linux
}

// Identification describes the IPv4 Identification fields of one Write's datagrams.
type Identification uint8

const (
	Zero    Identification = iota // 0 in each
	Counted                       // 0, 1, 2 … in order
	Unknown                       // not documented by the system
)

// Counters count events since the socket was opened.
type Counters struct {
	Reads, Writes       uint64 // system calls that moved datagrams
	Received, Sent      uint64 // datagrams
	Full                uint64 // Writes that returned ErrFull
	Unreachable         uint64 // network errors: ICMP, no route, firewall
	Truncated           uint64 // Reads dropped because the buffer was too short
	Empty               uint64 // dropped empty datagrams
	Overflows           uint64 // datagrams that the kernel dropped, usually because the receive buffer was full
	SegmentationRefused uint64 // destinations whose device does not support segmentation offload
}

type counters struct {
	reads, writes, received, sent, full, unreachable, truncated, empty, refused atomic.Uint64
}

func (c *counters) values() Counters {
	return Counters{Reads: c.reads.Load(), Writes: c.writes.Load(), Received: c.received.Load(), Sent: c.sent.Load(),
		Full: c.full.Load(), Unreachable: c.unreachable.Load(), Truncated: c.truncated.Load(), Empty: c.empty.Load(),
		SegmentationRefused: c.refused.Load()}
}

// Open opens a socket that is bound to one address of this machine; a link-local address needs its zone (fe80::1%eth0).
// Errors contain a hint, and match syscall.EADDRINUSE and others with errors.Is.
//
// A socket's methods may be called concurrently.
func Open(addr netip.Addr, o Options) (*Socket, error) {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast():
		return nil, fmt.Errorf("udp: %v: a socket needs one address of this machine: %w", addr, syscall.EINVAL)
	case addr.IsLinkLocalUnicast() && addr.Is6() && addr.Zone() == "":
		return nil, fmt.Errorf("udp: %v: a link-local address needs its interface, as in %v%%eth0: %w", addr, addr,
			syscall.EINVAL)
	case o.Share && o.Port == AnyPort:
		return nil, fmt.Errorf("udp: a shared port needs a port number: %w", syscall.EINVAL)
	case o.Port < AnyPort || o.Port > 65535:
		return nil, fmt.Errorf("udp: port %d is not in the range 1 to 65535: %w", o.Port, syscall.EINVAL)
	}
	switch o.Port {
	case 0:
		o.Port = Port
	case AnyPort:
		o.Port = 0
	}
	if o.Buffer == 0 {
		o.Buffer = 16 << 20
	}
	s, err := open(netip.AddrPortFrom(addr, uint16(o.Port)), o)
	if err != nil {
		return nil, explain(netip.AddrPortFrom(addr, uint16(o.Port)), err)
	}
	return s, nil
}

// explain adds the cause and a hint to the error of a bind.
func explain(at netip.AddrPort, err error) error {
	why := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = holder(at)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "it is none of this machine's addresses in this network namespace: " + addresses()
	case errors.Is(err, syscall.EAFNOSUPPORT):
		why = "this system has no " + family(at.Addr())
	case (errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM)) && at.Port() < 1024:
		why = "ports below 1024 may need CAP_NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		why = "a security policy (seccomp, SELinux, a sandbox) forbids it"
	}
	if why != "" {
		why = ": " + why
	}
	return fmt.Errorf("udp: open %v: %w%s", at, err, why)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// addresses lists this machine's addresses.
func addresses() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "unknown (" + err.Error() + ")"
	}
	list := ""
	for i, a := range all {
		if i > 0 {
			list += ", "
		}
		list += a.String()
	}
	if list == "" {
		return "none (is an interface up?)"
	}
	return list
}

// InterfaceOf returns the interface that has an address.
func InterfaceOf(addr netip.Addr) (*net.Interface, error) {
	if addr.Zone() != "" {
		return net.InterfaceByName(addr.Zone())
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var within *net.Interface
	for i := range all {
		list, err := all[i].Addrs()
		if err != nil {
			continue
		}
		for _, a := range list {
			n, _ := a.(*net.IPNet)
			if n == nil {
				continue
			}
			if has, _ := netip.AddrFromSlice(n.IP); has.Unmap() == addr {
				return &all[i], nil
			}
			if all[i].Flags&net.FlagLoopback != 0 && n.Contains(addr.AsSlice()) {
				within = &all[i] // loopback has all of 127.0.0.0/8
			}
		}
	}
	if within == nil {
		return nil, fmt.Errorf("udp: no interface has the address %v", addr)
	}
	return within, nil
}

// Source returns the address from which the system sends to another address, by its routes. It sends nothing.
func Source(to netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Unmap(), Port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// InterfaceMTU returns the maximum payload of a datagram by the MTU of the socket's interface. Linux sends packets to
// local addresses over loopback, whose MTU is greater.
func (s *Socket) InterfaceMTU() (int, error) {
	i, err := InterfaceOf(s.addr.Addr())
	if err != nil {
		return 0, err
	}
	return min(i.MTU-headers(s.addr.Addr()), MaxWrite), nil
}

// PathMTU returns the maximum payload of a datagram to an address, as far as this machine knows the path, so that both
// ends agree. For another local address it uses that address's interface instead of loopback.
func (s *Socket) PathMTU(to netip.Addr) (int, error) {
	own, err := s.InterfaceMTU()
	if err != nil {
		return 0, err
	}
	n, err := s.MTU(to)
	if err != nil || to.IsLoopback() || n <= own && n < MaxWrite { // not sent over loopback, or meant to be
		return min(n, own), err
	}
	if i, err := InterfaceOf(to.Unmap()); err == nil {
		n = min(n, i.MTU-headers(to.Unmap()))
	}
	return min(n, own), nil
}

// afterBTH is the maximum overhead of a packet besides the UDP header and its data: BTH, XRCETH, RETH, immediate data,
// ICRC.
const afterBTH = 12 + 4 + 16 + 4 + 4

// RoCEMTU returns the greatest RoCE MTU whose packets fit into datagrams of a payload size (Socket.MTU): 4096, 2048,
// 1024, 512 or 256, or 0 if none fits.
func RoCEMTU(payload int) int {
	for mtu := 4096; mtu >= 256; mtu /= 2 {
		if payload >= mtu+afterBTH {
			return mtu
		}
	}
	return 0
}

// headers returns the size of the IP and UDP headers.
func headers(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}
