// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Several processes share a port by SO_REUSEPORT: their sockets are a group, in whose list a socket's place is its
// number. A program of classic BPF chooses the place by what a packet begins with (steering).
//
// The kernel appends a new socket to the list, and moves the last one to the place of one that is closed. Places must
// not change while others are in use. So each member holds a descriptor of all sockets before its own: a socket whose
// process has ended stays open until all behind it are closed, and only the last one of the list ever leaves it. A
// process that joins takes over the first socket without a process, or else opens one behind all.
//
// Members find each other by abstract names of Unix sockets, which belong to the network namespace, as the port does,
// and which the kernel frees when a process ends, however it ends: prefix/N of member N, which gives its descriptors to
// processes of its user; and prefix/lock, which a process has while it joins.

const (
	joinLimit   = 30 * time.Second // for others that join at the same time, and for an answer of a member
	memberShift = 24 - memberBits
)

// group is a socket's place among others with its address and port.
type group struct {
	prefix string
	member int
	before []int // descriptors of the sockets before this one in the list
	name   *net.UnixListener
}

// join makes s a member of the group of its address and port.
func (s *Socket) join(at netip.AddrPort, before func(fd int) error) (err error) {
	g := &group{prefix: fmt.Sprintf("@goverbs-udp/%v/", at)}
	s.group = g
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	lock, err := g.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	sockets, alive, err := g.sockets()
	if err != nil {
		return err
	}
	g.member = len(sockets)
	for i, has := range alive {
		if !has {
			g.member = i
			break
		}
	}
	if g.member == MaxMembers {
		return fmt.Errorf("%d processes share it, and more cannot: %w", MaxMembers, unix.EADDRINUSE)
	}
	if g.before = sockets[:g.member]; g.member < len(sockets) {
		for _, fd := range sockets[g.member+1:] {
			unix.Close(fd)
		}
		if err = s.start(sockets[g.member], at); err != nil {
			unix.Close(sockets[g.member])
		}
	} else {
		err = s.bind(at, func(fd int) error {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				return err
			}
			return before(fd)
		})
	}
	if err == nil {
		err = s.steer(at)
	}
	if err == nil {
		g.name, err = net.ListenUnix("unix", g.named(g.member))
	}
	if err != nil {
		if s.watch != nil {
			s.watch.close()
			unix.Close(s.out.fd)
		}
		return err
	}
	go s.serve(g.name)
	return nil
}

func (g *group) named(member int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprint(g.prefix, member)}
}

// lock waits until no other process joins.
func (g *group) lock() (*net.UnixListener, error) {
	for end := time.Now().Add(joinLimit); ; time.Sleep(2 * time.Millisecond) {
		lock, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: g.prefix + "lock"})
		if !errors.Is(err, unix.EADDRINUSE) {
			return lock, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("another process has the name %slock for %v: %w", g.prefix, joinLimit, unix.EBUSY)
		}
	}
}

// sockets returns the sockets of the list, and which of them have a process that reads them. The last member has all
// of them; the socket of a member behind it is gone with it.
func (g *group) sockets() (fds []int, alive []bool, err error) {
	var found [MaxMembers]*net.UnixConn
	defer func() {
		for _, c := range found {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := range found {
		c, err := net.DialUnix("unix", nil, g.named(i))
		if err == nil {
			found[i] = c
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, nil, err
		}
	}
	for last := MaxMembers - 1; last >= 0; last-- {
		if found[last] == nil {
			continue
		}
		fds, err := ask(found[last])
		if err != nil {
			return nil, nil, fmt.Errorf("member %d, which shares it: %w", last, err)
		}
		if len(fds) != last+1 {
			closeAll(fds)
			continue // it has just ended
		}
		for _, c := range found[:last+1] {
			alive = append(alive, c != nil)
		}
		return fds, alive, nil
	}
	return nil, nil, nil
}

// ask reads the descriptors that a member sends. There are none if it has ended.
func ask(c *net.UnixConn) ([]int, error) {
	if user, err := userOf(c); err != nil || user != os.Geteuid() && user != 0 {
		return nil, fmt.Errorf("it is of user %d: %w", user, errors.Join(err, unix.EACCES))
	}
	if err := c.SetReadDeadline(time.Now().Add(joinLimit)); err != nil {
		return nil, err
	}
	b, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4*MaxMembers))
	n, length, _, _, err := c.ReadMsgUnix(b, control)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("it does not answer: %w", err)
	}
	if err != nil || n == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:length])
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range messages {
		rights, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, rights...)
	}
	return fds, nil
}

// serve gives the descriptors to processes of this user that join.
func (s *Socket) serve(name *net.UnixListener) {
	for {
		c, err := name.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // too many files are open
			continue
		}
		if user, err := userOf(c); err == nil && (user == os.Geteuid() || user == 0) {
			s.writing.Lock() // Close waits
			if !s.closed {
				all := append(append([]int(nil), s.group.before...), s.out.fd)
				_, _, _ = c.WriteMsgUnix([]byte{1}, unix.UnixRights(all...), nil)
			}
			s.writing.Unlock()
		}
		c.Close()
	}
}

// userOf is the effective user of the process at the other end.
func userOf(c *net.UnixConn) (user int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

func (g *group) close() {
	if g == nil {
		return
	}
	if g.name != nil {
		g.name.Close()
	}
	closeAll(g.before)
	g.before = nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// The offsets of what steering reads in the payload of a datagram: BTH, DETH (8 bytes), and a MAD of the connection
// manager.
const (
	bthQPN        = 4 // with 8 reserved bits before it
	madClass      = 20 + 1
	madAttribute  = 20 + 16
	madLocalComm  = 20 + 24 // the peer's; in SIDR_REP, what the request had
	madRemoteComm = 20 + 28 // ours, except in REQ and SIDR_REQ
	classCM       = 7
	attributeREQ  = 0x10
	sidrREQ       = 0x17
	sidrREP       = 0x18
)

// steering chooses the member that a packet is for: see Options.Share.
var steering = []unix.SockFilter{
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
	12: {Code: unix.BPF_JMP | unix.BPF_JA, K: 3},
	13: {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: madLocalComm},
	14: {Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
	15: {Code: unix.BPF_RET | unix.BPF_K},
	16: {Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 32 - memberBits},
	17: {Code: unix.BPF_RET | unix.BPF_A},
}

// steer has the kernel choose by steering, and makes sure that the socket has its place: what is sent to it comes.
// Another program that shares the port, or a process that is just ending, could have moved it.
func (s *Socket) steer(at netip.AddrPort) error {
	program := unix.SockFprog{Len: uint16(len(steering)), Filter: &steering[0]}
	err := unix.SetsockoptSockFprog(s.out.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program)
	if err != nil {
		return os.NewSyscallError("setsockopt SO_ATTACH_REUSEPORT_CBPF", err)
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
	probe := make([]byte, 32) // of a version of BTH that does not exist, with a queue pair of this member
	probe[0], probe[1], probe[bthQPN+1] = 0xff, 0x0f, byte(s.group.member<<(8-memberBits))
	probe[bthQPN+3] = 2
	_, _ = rand.Read(probe[12:])
	for end := time.Now().Add(joinLimit); time.Now().Before(end); {
		if err := unix.Sendto(fd, probe, 0, sockaddr(s.addr, s.scope)); err != nil {
			return os.NewSyscallError("sendto", err)
		}
		for ready(s.out.fd, unix.POLLIN, 50*time.Millisecond) {
			b := make([]byte, len(probe)+1)
			n, _, err := unix.Recvfrom(s.out.fd, b, unix.MSG_DONTWAIT)
			if err == nil && string(b[:n]) == string(probe) {
				return nil
			}
		}
	}
	return fmt.Errorf("packets for member %d go elsewhere: does another program share the port? %w", s.group.member,
		syscall.EADDRINUSE)
}
