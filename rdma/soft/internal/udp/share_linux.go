// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
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
// and which the kernel frees when a process ends, however it ends:
//
//   - prefix/N of member N, which gives its descriptors to processes of its user,
//   - prefix/lock, which a process has while it joins,
//   - prefix/lead of the lead (steer_linux.go).
//
// The kernel joins packets that come from other machines (GRO) by their ports alone, and would give one member those of
// another. So a member that is alone has it switched on, and the next one that joins switches it off. What loopback
// delivers is a Write, which is for one member.

// Every user of the machine can take such a name. So a member asks the kernel who has it. An address whose lock, or
// whose next member, is of another user is in use, and members whose lead's name is of another user do without it
// (follow).

const (
	joinLimit     = 30 * time.Second // for others that join at the same time
	answerLimit   = 10 * time.Second // for an answer of a process that runs
	strangerLimit = time.Second      // for a process that is stopped, has a name and does not listen yet, or has no room
)

// group is a socket's place among others with its address and port.
type group struct {
	prefix string
	member int
	before []int // descriptors of the sockets before this one in the list
	others bool  // there were some when it joined
	name   *net.UnixListener
	lead   *net.UnixListener // it is the lead
	heeds  *net.UnixConn     // or is connected to it

	claims    int // descriptor of the file with the locks of services (claim_linux.go)
	hasClaims bool
	secret    [secretSize]byte

	followers map[*net.UnixConn]bool // of the lead
}

// hasOthers says whether there were others when the socket joined.
func (g *group) hasOthers() bool { return g != nil && g.others }

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
	sockets, claims, alive, err := g.sockets()
	if err != nil {
		return err
	}
	if g.others = len(sockets) > 0; !g.others {
		if claims, err = newClaims(); err != nil {
			return err
		}
	}
	if err = g.useClaims(claims); err != nil {
		closeAll(sockets)
		return err
	}
	if !at.Addr().IsLoopback() {
		for _, fd := range sockets {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 0)
		}
	}
	g.member = len(sockets)
	for i, has := range alive {
		if !has {
			g.member = i
			break
		}
	}
	if g.member == MaxMembers {
		closeAll(sockets)
		return fmt.Errorf("%d processes share it, and more cannot: %w", MaxMembers, unix.EADDRINUSE)
	}
	if g.before = sockets[:g.member]; g.member < len(sockets) {
		closeAll(sockets[g.member+1:])
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
	if err != nil {
		return err
	}
	if err = s.enter(at); err != nil {
		s.watch.close()
		unix.Close(s.out.fd)
		return err
	}
	go answer(g.name, s.introduce)
	go s.follow()
	return nil
}

// enter lets packets find the socket, and then others that join.
func (s *Socket) enter(at netip.AddrPort) error {
	g := s.group
	leads, err := s.leads()
	if errors.Is(err, unix.EADDRINUSE) { // a stranger has the name of the lead
		err = nil
	}
	if err == nil && !leads && !g.others { // the one that led has just ended, or is a stranger
		err = s.steer()
	}
	if err == nil {
		err = s.probe(at)
	}
	if err == nil {
		g.name, err = net.ListenUnix("unix", g.named(g.member))
	}
	return err
}

func (g *group) named(member int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprint(g.prefix, member)}
}

// dial connects to the process of this user that has a name. It returns nil if none listens. If the process is of
// another user, or has no room, the error is EADDRINUSE.
func dial(name *net.UnixAddr) (*net.UnixConn, error) {
	for end := time.Now().Add(strangerLimit); ; time.Sleep(2 * time.Millisecond) {
		c, err := net.DialUnix(name.Net, nil, name)
		switch {
		case err == nil:
			if err = isOurs(c); err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		case errors.Is(err, unix.ECONNREFUSED):
			return nil, nil
		case !errors.Is(err, unix.EAGAIN):
			return nil, err
		case time.Now().After(end):
			return nil, inUse(name)
		}
	}
}

func inUse(name *net.UnixAddr) error {
	return fmt.Errorf("the process with the name %s does not answer: %w", name.Name, unix.EADDRINUSE)
}

// lock waits until no other process joins. The error is EADDRINUSE if a process of another user has the lock.
func (g *group) lock() (*net.UnixListener, error) {
	name := &net.UnixAddr{Net: "unix", Name: g.prefix + "lock"}
	end, silent := time.Now().Add(joinLimit), time.Now().Add(strangerLimit)
	for {
		lock, err := net.ListenUnix("unix", name)
		if !errors.Is(err, unix.EADDRINUSE) {
			return lock, err
		}
		owner, err := dial(name)
		switch {
		case err != nil:
			return nil, err
		case owner != nil: // the connection ends with the lock
			_, err = await(owner, nil, joinLimit)
			owner.Close()
			if err != nil {
				return nil, fmt.Errorf("a process that is about to share it: %w", err)
			}
			silent = time.Now().Add(strangerLimit)
		default: // it has just ended, or does not listen yet
			time.Sleep(2 * time.Millisecond)
		}
		if now := time.Now(); now.After(end) || now.After(silent) {
			return nil, inUse(name)
		}
	}
}

// sockets returns the sockets of the list, the file of claims, and which sockets have a process that reads them. The
// last member has all of them; the socket of a member behind it is gone with it.
func (g *group) sockets() (fds []int, claims int, alive []bool, err error) {
	var found [MaxMembers]*net.UnixConn
	defer func() {
		for _, c := range found {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := range found {
		if found[i], err = dial(g.named(i)); err != nil {
			return nil, -1, nil, err
		}
	}
	for last := MaxMembers - 1; last >= 0; last-- {
		if found[last] == nil {
			continue
		}
		fds, err := ask(found[last])
		if err != nil {
			return nil, -1, nil, fmt.Errorf("member %d, which shares it: %w", last, err)
		}
		if len(fds) != last+2 {
			closeAll(fds)
			continue // it has just ended
		}
		for _, c := range found[:last+1] {
			alive = append(alive, c != nil)
		}
		return fds[:last+1], fds[last+1], alive, nil
	}
	return nil, -1, nil, nil
}

// ask reads the descriptors that a member sends. There are none if it has ended.
func ask(c *net.UnixConn) ([]int, error) {
	control := make([]byte, unix.CmsgSpace(4*(MaxMembers+1)))
	length, err := await(c, control, answerLimit)
	if err != nil || length == 0 {
		return nil, err
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

// await waits for a byte, or for the end of a connection, and returns the length of the control data that comes with
// the byte. The error is EADDRINUSE if the other process is stopped, or runs and does not answer within a limit.
func await(c *net.UnixConn, control []byte, limit time.Duration) (length int, err error) {
	for end := time.Now().Add(limit); ; {
		if err := c.SetReadDeadline(time.Now().Add(strangerLimit)); err != nil {
			return 0, err
		}
		n, length, _, _, err := c.ReadMsgUnix(make([]byte, 1), control)
		if err == nil && n > 0 {
			return length, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, nil // it has ended
		}
		cred, err := credentials(c)
		switch {
		case err != nil:
			return 0, err
		case isStopped(cred.Pid):
			return 0, fmt.Errorf("process %d is stopped; continue it (kill -CONT %[1]d) or end it: %w", cred.Pid,
				unix.EADDRINUSE)
		case time.Now().After(end):
			return 0, fmt.Errorf("process %d does not answer: %w", cred.Pid, unix.EADDRINUSE)
		}
	}
}

// isStopped reports whether a process is stopped, by a signal or a debugger.
func isStopped(pid int32) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	state := strings.TrimPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}

// introduce gives the descriptors to a process that joins.
func (s *Socket) introduce(c *net.UnixConn) {
	defer c.Close()
	s.writing.Lock() // Close waits
	defer s.writing.Unlock()
	if !s.closed {
		all := append(slices.Clone(s.group.before), s.out.fd, s.group.claims)
		_, _, _ = c.WriteMsgUnix([]byte{1}, unix.UnixRights(all...), nil)
	}
}

// answer lets a function talk to each process of this user that connects, and close the connection, until the listener
// is closed. Others are turned away at once, so that they do not fill the queue.
func answer(l *net.UnixListener, talk func(*net.UnixConn)) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // too many files are open
			continue
		}
		if isOurs(c) != nil {
			c.Close()
			continue
		}
		talk(c)
	}
}

// isOurs says nil of a process of this user, or of root, at the other end.
func isOurs(c *net.UnixConn) error {
	cred, err := credentials(c)
	if err == nil && int(cred.Uid) != os.Geteuid() && cred.Uid != 0 {
		err = fmt.Errorf("it is of user %d, and only processes of one user share an address: %w", cred.Uid,
			unix.EADDRINUSE)
	}
	return err
}

// credentials are those of the process at the other end, with its effective user.
func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, failed)
}

func (g *group) close() {
	if g == nil {
		return
	}
	for _, l := range []*net.UnixListener{g.name, g.lead} {
		if l != nil {
			l.Close()
		}
	}
	if g.heeds != nil {
		g.heeds.Close()
	}
	for c := range g.followers {
		c.Close()
	}
	closeAll(g.before)
	g.before = nil
	if g.hasClaims {
		unix.Close(g.claims)
		g.hasClaims = false
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
