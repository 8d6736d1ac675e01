// SPDX-License-Identifier: BSD-2-Clause

// Package udp has the sockets of a wire that speaks RoCEv2: UDP sockets of one address each, which move many datagrams
// in a system call where the kernel can do so.
//
// The check sum of RoCE's packets (ICRC) covers the Identification of the IPv4 header, which a UDP socket neither
// chooses nor sees; IPv6 has no such field. So [Socket.Identification] says what the kernel writes there:
//
//   - Linux: 0, and 0, 1, 2 … in the datagrams that one Write sends by segmentation offload (GSO).
//   - macOS: 0, because such a socket's datagrams must not be fragmented. This is from its source, it was not run.
//   - Windows and others: not known. Peers there are reached over IPv6, or over IPv4 if the receiver finds the
//     Identification out by itself, as ours can: the ICRC is linear in it. Soft-RoCE and adapters do not.
//
// Elsewhere than on Linux, a system call moves one datagram, and the path's MTU is that of the address's interface.
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

// AnyPort in Options.Port lets the kernel choose a port: for tests.
const AnyPort = -1

const (
	// MaxRead is the most bytes that one Read brings. A shorter buffer loses datagrams.
	MaxRead = 1 << 16
	// MaxWrite is the most bytes of one Write: with the headers of IPv6, the length field of IP holds no more.
	MaxWrite = 65535 - 40 - 8
	// MaxSegments is the most datagrams of one Write.
	MaxSegments = 64
	// MaxBuffers is the most buffers of one WriteBuffers: for each datagram, headers, data, what follows, and one more.
	MaxBuffers = 4 * MaxSegments
)

var (
	// ErrFull says that the socket's send buffer, or the queue of the device, has no room: try later. WaitWrite waits
	// for room.
	ErrFull = errors.New("udp: no room to send: try later")
	// ErrSealAgain says that Identification has another answer for this destination than before the Write: the
	// device sends no segments. Nothing was sent. Seal the datagrams with Identification 0, and write them again.
	ErrSealAgain = errors.New("udp: the device refuses segmentation offload: each datagram has Identification 0")
)

// Options are of a socket. The zero value is what RoCE uses.
type Options struct {
	Port   int  // 0 is Port
	Plain  bool // one datagram a system call: no segmentation offload, neither to send nor to receive
	Buffer int  // bytes to ask for as receive and as send buffer; 0 is 16 MiB. The system has a limit of its own

	// Share lets up to MaxMembers sockets have this address and port, of processes of one user, on Linux; elsewhere it
	// does nothing. Each has a number, Socket.Member, which no other living one has and which does not change. A packet
	// goes to the member whose number is in the highest 6 bits
	//
	//   - of the queue pair number that the packet is for,
	//   - if that is 1, of the communication ID by which the receiver of a message of the connection manager knows the
	//     connection (SIDR_REP: the request),
	//
	// and otherwise to one of the members, the lead: requests for connections (REQ, SIDR_REQ), all other MADs. Claimed
	// returns the member that these are for. So members use queue pair numbers and IDs with their number.
	//
	// What is for a number that nobody has goes to any member. The datagrams of one Write have to be for the same
	// member. When the lead closes its socket or ends, however it ends, another member is it within milliseconds. What
	// is sent to another one that has ended is lost, until the next that opens the address takes its number.
	Share bool
}

const (
	memberBits = 6
	// MaxMembers is how many sockets may share an address. Queue pair number 0xffffff, which is of multicast, is
	// nobody's.
	MaxMembers = 1<<memberBits - 1
)

// MemberOfQP is the member whose queue pair has a number of 24 bits.
func MemberOfQP(number uint32) int { return int(number >> memberShift) }

// QPsOf is the least number that a queue pair of a member may have; the greatest is QPsOf of the next one, less 1.
func QPsOf(member int) uint32 { return uint32(member) << memberShift }

// IDOf makes a number the communication ID of a member.
func IDOf(member int, number uint32) uint32 { return uint32(member)<<idShift | number&(1<<idShift-1) }

const (
	memberShift = 24 - memberBits
	idShift     = 32 - memberBits
)

// Arrival is what one Read brought: datagrams of one sender, one behind the other.
type Arrival struct {
	N       int            // bytes
	Segment int            // bytes of each datagram; the last one may be shorter
	From    netip.AddrPort // without a zone
	TTL     uint8          // hop limit, on Linux; with several datagrams, of the first one
	TOS     uint8          // or traffic class, likewise
}

// Identification is what the IPv4 headers of one Write's datagrams have in their Identification field.
type Identification uint8

const (
	Zero    Identification = iota // 0 in each
	Counted                       // 0, 1, 2 … in their order
	Unknown                       // the system does not say
)

// Counters count since the socket was opened.
type Counters struct {
	Reads, Writes       uint64 // system calls that moved datagrams
	Received, Sent      uint64 // datagrams
	Full                uint64 // Writes that ended with ErrFull
	Unreachable         uint64 // errors of the network that were reported to the socket: ICMP, no route, a firewall
	Truncated           uint64 // Reads whose datagrams were dropped since the buffer was too short
	Empty               uint64 // datagrams without a byte, which were dropped
	Overflows           uint64 // datagrams that the kernel dropped on arrival: mostly, the receive buffer was full
	SegmentationRefused uint64 // destinations to which no segments are sent any more, since a device refused them
}

type counters struct {
	reads, writes, received, sent, full, unreachable, truncated, empty, refused atomic.Uint64
}

func (c *counters) values() Counters {
	return Counters{Reads: c.reads.Load(), Writes: c.writes.Load(), Received: c.received.Load(), Sent: c.sent.Load(),
		Full: c.full.Load(), Unreachable: c.unreachable.Load(), Truncated: c.truncated.Load(), Empty: c.empty.Load(),
		SegmentationRefused: c.refused.Load()}
}

// Open opens a socket that is bound to one address of this machine, as peers name it; a link-local one has its zone
// (fe80::1%eth0). Errors name the reason and the remedy; errors.Is finds syscall.EADDRINUSE and others in them.
//
// A socket's methods may be called by several goroutines.
func Open(addr netip.Addr, o Options) (*Socket, error) {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast():
		return nil, fmt.Errorf("udp: %v: a socket is bound to one address of this machine: %w", addr, syscall.EINVAL)
	case addr.IsLinkLocalUnicast() && addr.Is6() && addr.Zone() == "":
		return nil, fmt.Errorf("udp: %v: a link-local address needs its interface, as in %v%%eth0: %w", addr, addr,
			syscall.EINVAL)
	case o.Share && o.Port == AnyPort:
		return nil, fmt.Errorf("udp: a port that is shared is not any port: %w", syscall.EINVAL)
	case o.Port < AnyPort || o.Port > 65535:
		return nil, fmt.Errorf("udp: port %d: ports are 1 to 65535: %w", o.Port, syscall.EINVAL)
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

// explain adds to the error of a bind why it failed and what to do.
func explain(at netip.AddrPort, err error) error {
	why := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = holder(at)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "it is none of this machine's addresses in this network namespace, which are " + addresses()
	case errors.Is(err, syscall.EAFNOSUPPORT):
		why = "this system has no " + family(at.Addr())
	case (errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM)) && at.Port() < 1024:
		why = "ports below 1024 may need CAP_NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		why = "a security policy of this system (seccomp, SELinux, a sandbox) forbids it"
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
		return "not known (" + err.Error() + ")"
	}
	list := ""
	for i, a := range all {
		if i > 0 {
			list += ", "
		}
		list += a.String()
	}
	if list == "" {
		return "none: is an interface up?"
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
				within = &all[i] // every address of 127.0.0.0/8
			}
		}
	}
	if within == nil {
		return nil, fmt.Errorf("udp: no interface has the address %v", addr)
	}
	return within, nil
}

// Source is the address that the system sends from to another one, by its routes, where a program names none. Nothing
// is sent.
func Source(to netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Unmap(), Port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// InterfaceMTU is how many bytes of payload a datagram may have by the MTU of the interface that has the socket's
// address: Linux's path from an address to itself goes by loopback, whose MTU is greater.
func (s *Socket) InterfaceMTU() (int, error) {
	i, err := InterfaceOf(s.addr.Addr())
	if err != nil {
		return 0, err
	}
	return min(i.MTU-headers(s.addr.Addr()), MaxWrite), nil
}

// PathMTU is how many bytes of payload a datagram to an address may have, as far as this machine knows, so that both
// ends say the same: also of another address of this machine, whose interface may take less than loopback, by which
// Linux leads there.
func (s *Socket) PathMTU(to netip.Addr) (int, error) {
	own, err := s.InterfaceMTU()
	if err != nil {
		return 0, err
	}
	n, err := s.MTU(to)
	if err != nil || to.IsLoopback() || n <= own && n < MaxWrite { // then it does not go by loopback, or should
		return min(n, own), err
	}
	if i, err := InterfaceOf(to.Unmap()); err == nil {
		n = min(n, i.MTU-headers(to.Unmap()))
	}
	return min(n, own), nil
}

// afterBTH is what a packet has beside UDP's header and its data, at most: BTH, XRCETH, RETH, immediate data, ICRC.
const afterBTH = 12 + 4 + 16 + 4 + 4

// RoCEMTU is the greatest MTU of RoCE whose packets fit into datagrams of so many bytes of payload (Socket.MTU): 4096,
// 2048, 1024, 512 or 256; 0 is for none.
func RoCEMTU(payload int) int {
	for mtu := 4096; mtu >= 256; mtu /= 2 {
		if payload >= mtu+afterBTH {
			return mtu
		}
	}
	return 0
}

// headers is how many bytes IP and UDP put before a datagram's payload.
func headers(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}
