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

// Several processes share a port with SO_REUSEPORT: their sockets form a group, and a socket's index in the group's
// list is its number. A classic BPF program selects the index from the headers of a packet (steering).
//
// The kernel appends a new socket to the list, and moves the last socket to the index of a closed one. Indexes must not
// change while in use, so each member holds descriptors of all sockets before its own: a socket whose process has ended
// stays open until all later ones are closed, and only the last socket ever leaves the list. A process that joins takes
// over the first socket without a process, or appends a new one.
//
// Members find each other by abstract Unix socket names, which like the port belong to the network namespace, and which
// the kernel releases whenever a process ends:
//
//   - prefix/N of member N, which passes its descriptors to processes of its user,
//   - prefix/lock, held by a process while it joins,
//   - prefix/lead of the lead (steer_linux.go).
//
// For packets from other machines, GRO merges by ports only, and would deliver packets of different members together.
// So GRO is enabled only while a member is alone, and disabled when the next one joins. Loopback delivers the datagrams
// of one Write together, which are for one member.

//
// Any user of the machine can bind such a name, so members query the kernel for its owner. If the lock or the next
// member's name belongs to another user, the address is in use. If the lead's name belongs to another user, members
// work without it (follow).

const (
	joinLimit     = 30 * time.Second // wait for concurrent joins
	answerLimit   = 10 * time.Second // response of a running process
	strangerLimit = time.Second      // process that is stopped, does not listen yet, or has a full backlog
)

// group is a socket's membership in the group of its address and port.
type group struct {
	prefix   string
	member   int
	before   []int // descriptors of earlier sockets in the list
	others   bool  // there were other members when it joined
	name     *net.UnixListener
	lead     *net.UnixListener // set if it is the lead
	leadConn *net.UnixConn     // otherwise the connection to the lead

	claims    int // descriptor of the file with the locks of services (claim_linux.go)
	hasClaims bool
	secret    [secretSize]byte

	followers map[*net.UnixConn]bool // connections to the lead
}

// hasOthers reports whether the group had other members when the socket joined.
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
		return fmt.Errorf("%d processes share it, the maximum: %w", MaxMembers, unix.EADDRINUSE)
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

// enter makes the socket receive packets, and then visible to processes that join.
func (s *Socket) enter(at netip.AddrPort) error {
	g := s.group
	isLead, err := s.elect()
	if errors.Is(err, unix.EADDRINUSE) { // another user has the lead's name
		err = nil
	}
	if err == nil && !isLead && !g.others { // the lead has just ended, or belongs to another user
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

// dial connects to the process of this user that listens at a name. It returns nil if none listens, and EADDRINUSE if
// the process belongs to another user or its backlog is full.
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
	return fmt.Errorf("the process that holds the name %s does not answer: %w", name.Name, unix.EADDRINUSE)
}

// lock waits until no other process is joining. It returns EADDRINUSE if a process of another user holds the lock.
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
		case owner != nil: // the connection closes when the lock is released
			_, err = await(owner, nil, joinLimit)
			owner.Close()
			if err != nil {
				return nil, fmt.Errorf("a process that is about to share it: %w", err)
			}
			silent = time.Now().Add(strangerLimit)
		default: // the process has just ended, or does not listen yet
			time.Sleep(2 * time.Millisecond)
		}
		if now := time.Now(); now.After(end) || now.After(silent) {
			return nil, inUse(name)
		}
	}
}

// sockets returns the sockets of the list, the file of claims, and which sockets have a live process. The last live
// member has all descriptors; sockets after it are closed.
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
			continue // the member has just ended
		}
		for _, c := range found[:last+1] {
			alive = append(alive, c != nil)
		}
		return fds[:last+1], fds[last+1], alive, nil
	}
	return nil, -1, nil, nil
}

// ask reads the descriptors that a member sends, or none if it has ended.
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

// await waits for a byte, or for the end of a connection, and returns the length of the control data with the byte. It
// returns EADDRINUSE if the other process is stopped, or does not respond within a limit.
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
			return 0, nil // the process has ended
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

// isStopped reports whether a process was stopped by a signal or a debugger.
func isStopped(pid int32) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	state := strings.TrimPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}

// introduce sends the descriptors to a process that joins.
func (s *Socket) introduce(c *net.UnixConn) {
	defer c.Close()
	s.writing.Lock() // excludes Close
	defer s.writing.Unlock()
	if !s.closed {
		all := append(slices.Clone(s.group.before), s.out.fd, s.group.claims)
		_, _, _ = c.WriteMsgUnix([]byte{1}, unix.UnixRights(all...), nil)
	}
}

// answer calls talk for each connection of a process of this user, and then closes it, until the listener is closed.
// Connections of others are closed at once, so that they do not fill the backlog.
func answer(l *net.UnixListener, talk func(*net.UnixConn)) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // too many open files
			continue
		}
		if isOurs(c) != nil {
			c.Close()
			continue
		}
		talk(c)
	}
}

// isOurs returns nil if the process at the other end belongs to this user or to root.
func isOurs(c *net.UnixConn) error {
	cred, err := credentials(c)
	if err == nil && int(cred.Uid) != os.Geteuid() && cred.Uid != 0 {
		err = fmt.Errorf("it belongs to user %d, and only processes of one user can share an address: %w", cred.Uid,
			unix.EADDRINUSE)
	}
	return err
}

// credentials returns the credentials of the process at the other end, with its effective user.
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
	if g.leadConn != nil {
		g.leadConn.Close()
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
