// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Offsets of the fields that steering reads in the payload of a datagram: BTH, DETH (8 bytes), and a MAD of the
// connection manager.
const (
	bthQPN        = 4 // includes 8 reserved bits
	madClass      = 20 + 1
	madAttribute  = 20 + 16
	madLocalComm  = 20 + 24 // the peer's ID; in SIDR_REP, the request's
	madRemoteComm = 20 + 28 // our ID, except in REQ and SIDR_REQ; 0 if unknown to the peer
	classCM       = 7
	attributeREQ  = 0x10
	sidrREQ       = 0x17
	sidrREP       = 0x18
)

// steering returns the program that selects the member for a packet; see Options.Share. Truncated packets go to member
// 0.
func steering(lead int) []unix.SockFilter {
	return []unix.SockFilter{
		0:  {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: bthQPN},
		1:  {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 1<<24 - 1},
		2:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 1, Jt: 2},
		3:  {Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: memberShift},
		4:  {Code: unix.BPF_RET | unix.BPF_A},
		5:  {Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: madClass},
		6:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: classCM, Jf: 8},
		7:  {Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: madAttribute},
		8:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: attributeREQ, Jt: 6},
		9:  {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: sidrREQ, Jt: 5},
		10: {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: sidrREP, Jt: 2},
		11: {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: madRemoteComm},
		12: {Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
		13: {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: madLocalComm},
		14: {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
		15: {Code: unix.BPF_RET | unix.BPF_K, K: uint32(lead)},
		16: {Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: idShift},
		17: {Code: unix.BPF_RET | unix.BPF_A},
	}
}

// steer installs the steering program, with this member as the lead.
func (s *Socket) steer() error {
	filter := steering(s.group.member)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF",
		unix.SetsockoptSockFprog(s.out.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program))
}

// elect makes the socket the lead if it can bind the lead's name, and otherwise connects to the lead. It reports
// whether the socket is the lead, and returns EADDRINUSE if a process of another user has bound the name.
func (s *Socket) elect() (isLead bool, err error) {
	at := &net.UnixAddr{Net: "unix", Name: s.group.prefix + "lead"}
	for end := time.Now().Add(strangerLimit); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		l, err := net.ListenUnix("unix", at)
		if err == nil {
			return true, s.lead(l)
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return false, err
		}
		c, err := dial(at)
		if err != nil {
			return false, err
		}
		if c != nil {
			return false, s.watchLead(c)
		}
	}
	return false, inUse(at)
}

// lead makes the socket the lead.
func (s *Socket) lead(l *net.UnixListener) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		l.Close()
		return net.ErrClosed
	}
	s.group.lead, s.group.followers = l, map[*net.UnixConn]bool{}
	go answer(l, s.watchFollower)
	return s.steer()
}

// watchFollower holds a member's connection to this socket, the lead, until either process closes it.
func (s *Socket) watchFollower(c *net.UnixConn) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		c.Close()
		return
	}
	s.group.followers[c] = true
	go func() {
		_, _ = c.Read(make([]byte, 1))
		s.writing.Lock()
		defer s.writing.Unlock()
		delete(s.group.followers, c)
		c.Close()
	}()
}

// watchLead stores the connection to the lead.
func (s *Socket) watchLead(c *net.UnixConn) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		c.Close()
		return net.ErrClosed
	}
	s.group.leadConn = c
	return nil
}

// follow waits until the lead's process ends, and then the next lead's, until the socket is closed or becomes the lead.
// The connection carries no data; only its end matters. While a process of another user holds the lead's name, the
// first live member leads without it.
func (s *Socket) follow() {
	isLead, err := s.group.lead != nil, error(nil)
	for !isLead && !errors.Is(err, net.ErrClosed) {
		if c := s.group.leadConn; c != nil {
			_, _ = c.Read(make([]byte, 1))
			c.Close()
		}
		if isLead, err = s.elect(); err != nil {
			if errors.Is(err, unix.EADDRINUSE) {
				err = s.leadUnnamed()
			}
			time.Sleep(joinLimit / 100) // too many open files, or another user has the name
		}
	}
}

// leadUnnamed directs packets for the lead to this socket if no earlier member is running.
func (s *Socket) leadUnnamed() error {
	for i := range s.group.member {
		if c, err := dial(s.group.named(i)); err == nil && c != nil {
			c.Close()
			return nil
		}
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	return s.steer()
}

// probe verifies the socket's index by sending a packet to itself. Another program that shares the port, or a process
// that is just ending, could have changed it. It discards packets for the number's previous process.
func (s *Socket) probe(at netip.AddrPort) error {
	if loopbackIsDown() { // the packet would use loopback
		return nil
	}
	fd, err := unix.Socket(map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[at.Addr().Is4()],
		unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(at.Addr(), 0), s.scope)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	packet := make([]byte, 32) // invalid BTH version, queue pair of this member
	packet[0], packet[1], packet[bthQPN+1] = 0xff, 0x0f, byte(s.group.member<<(8-memberBits))
	packet[bthQPN+3] = 2
	_, _ = rand.Read(packet[12:])
	for end := time.Now().Add(answerLimit); time.Now().Before(end); {
		if err := unix.Sendto(fd, packet, 0, sockaddr(s.addr, s.scope)); err != nil {
			return os.NewSyscallError("sendto", err)
		}
		for again := time.Now().Add(50 * time.Millisecond); time.Now().Before(again); {
			if !ready(s.out.fd, unix.POLLIN, time.Until(again)) {
				break
			}
			b := make([]byte, len(packet)+1)
			n, _, err := unix.Recvfrom(s.out.fd, b, unix.MSG_DONTWAIT)
			if err == nil && string(b[:n]) == string(packet) {
				return nil
			}
		}
	}
	return fmt.Errorf("packets for member %d go to another socket; does another program share the port? %w",
		s.group.member, unix.EADDRINUSE)
}

// loopbackIsDown reports whether local addresses are unreachable, as in a network namespace whose loopback interface is
// down.
func loopbackIsDown() bool {
	all, err := net.Interfaces()
	return err == nil && !slices.ContainsFunc(all, func(i net.Interface) bool {
		return i.Flags&(net.FlagLoopback|net.FlagUp) == net.FlagLoopback|net.FlagUp
	})
}
