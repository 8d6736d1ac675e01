// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Members share an unnamed file, which the first one creates and passes to members that join. So no other user can
// prevent a claim, or forge a message passed on by a member. The file begins with the group's secret. A claim of a
// service is a lock (F_OFD_SETLK), which the kernel releases when the process ends. A lock starts at the byte of its
// service, and its length encodes the member.
const (
	secretSize = 16
	lockRoom   = MaxMembers + 1
	topService = 1<<56 - 1 // a lock's end has 63 bits
)

// Claim is a service claimed by a socket.
type Claim struct {
	fd   int
	lock unix.Flock_t
}

// newClaims creates the file of a group.
func newClaims() (fd int, err error) {
	const name = "goverbs-udp"
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret)
	if _, err = unix.Pwrite(fd, secret, 0); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("pwrite", err)
	}
	return fd, nil
}

// useClaims sets the file of the group.
func (g *group) useClaims(fd int) error {
	g.claims, g.hasClaims = fd, true
	_, err := unix.Pread(fd, g.secret[:], 0)
	return os.NewSyscallError("pread", err)
}

// Secret returns the secret that the members of the socket's group share, or zeros without a group.
func (s *Socket) Secret() (secret [secretSize]byte) {
	if s.group != nil {
		secret = s.group.secret
	}
	return secret
}

// Claim claims a service for this socket until Close of the claim. It returns EADDRINUSE if another member, or another
// claim of this socket, has the service. A socket that is not shared needs no claim, and the result is nil.
func (s *Socket) Claim(service uint64) (*Claim, error) {
	if s.group == nil {
		return nil, nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	fd, err := reopen(s.group.claims)
	if err != nil {
		return nil, fmt.Errorf("udp: claim service %#x: %w", service, err)
	}
	c := &Claim{fd, lockOf(service, s.group.member)}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &c.lock); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = unix.EADDRINUSE
		}
		return nil, fmt.Errorf("udp: service %#x is in use by another process that shares %v: %w", service, s.addr, err)
	}
	return c, nil
}

// reopen opens an unnamed file again, because locks belong to an open file description.
func reopen(fd int) (int, error) {
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a file in /proc/self/fd: %w; mount /proc", err)
	}
	return own, nil
}

func lockOf(service uint64, member int) unix.Flock_t {
	return unix.Flock_t{Type: unix.F_WRLCK, Start: int64(min(service, topService) * lockRoom), Len: int64(member + 1)}
}

// Close releases the service.
func (c *Claim) Close() {
	if c == nil {
		return
	}
	c.lock.Type = unix.F_UNLCK // closing is not enough if a child process inherited the file
	_ = unix.FcntlFlock(uintptr(c.fd), unix.F_OFD_SETLK, &c.lock)
	unix.Close(c.fd)
}

// Claimed returns the member that has claimed a service, if any.
func (s *Socket) Claimed(service uint64) (member int, ok bool) {
	if s.group == nil {
		return 0, false
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return 0, false
	}
	lock := lockOf(service, MaxMembers-1)
	err := unix.FcntlFlock(uintptr(s.group.claims), unix.F_OFD_GETLK, &lock)
	return int(lock.Len) - 1, err == nil && lock.Type != unix.F_UNLCK
}

// Claimant describes the process that has claimed a service, or why none can claim it, or returns "".
func (s *Socket) Claimant(service uint64) string {
	member, ok := s.Claimed(service)
	if !ok {
		if _, err := os.Stat("/proc/self/fd"); err != nil {
			return "it needs /proc; mount it"
		}
		return ""
	}
	c, err := net.DialUnix("unix", nil, s.group.named(member))
	if err != nil {
		return "a process that shares the address uses it"
	}
	defer c.Close()
	cred, err := credentials(c)
	if err != nil || isOurs(c) != nil { // the claimant has just ended
		return "a process that shares the address uses it"
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cred.Pid))
	return fmt.Sprintf("process %d (%q), which shares the address, uses it", cred.Pid, strings.TrimSpace(string(name)))
}
