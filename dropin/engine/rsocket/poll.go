// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Events of poll(2) that mean the same as POLLIN and POLLOUT.
const (
	readNormal  = 0x40  // POLLRDNORM
	writeNormal = 0x100 // POLLWRNORM
)

// events returns the socket's poll events: the requested ones that are ready, and errors.
func (k *socket) events(asked int16) int16 {
	const always = unix.POLLERR | unix.POLLHUP | unix.POLLNVAL
	if c := k.conn.Load(); c != nil {
		now := eventsOf(c.Ready())
		if now&(asked|always) == 0 {
			c.Poll()
			now = eventsOf(c.Ready())
		}
		if k.deaf.Load() {
			now |= unix.POLLIN
		}
		return now & (asked | always)
	}
	k.mu.Lock()
	now, q := k.state, k.queue
	k.mu.Unlock()
	switch {
	case now == failed:
		return asked&(unix.POLLIN|unix.POLLOUT) | unix.POLLERR
	case now == closed:
		return unix.POLLNVAL
	case now == listening && q.has():
		return asked & (unix.POLLIN | readNormal)
	}
	return 0
}

// pollFDs returns the n pollfd structures at a C address. The slice aliases C memory.
func pollFDs(at, n uint64) []unix.PollFd {
	if at == 0 || n == 0 {
		return nil
	}
	return unsafe.Slice(ibv.Ptr[unix.PollFd](at).Deref(), int(n))
}

// poll returns a call that implements rpoll. If milliseconds is negative, it has no timeout. outcome, if not nil,
// converts the number of ready descriptors.
func (s *Sockets) poll(fds []unix.PollFd, milliseconds int, outcome func(int) (int, error)) *call {
	c := &call{polls: true}
	sockets := make([]*socket, len(fds))
	for i := range fds {
		if sockets[i] = s.find(fds[i].Fd); sockets[i] == nil {
			c.others = append(c.others, unix.PollFd{Fd: fds[i].Fd, Events: fds[i].Events})
		} else {
			c.waits = append(c.waits, awaited{sockets[i], fds[i].Events})
		}
	}
	if milliseconds > 0 {
		c.end = time.Now().Add(time.Duration(milliseconds) * time.Millisecond)
	}
	others := len(c.others)
	c.try = func(interrupted error) (int, error) {
		n := 0
		for i, k := range sockets {
			if k != nil {
				fds[i].Revents = k.events(fds[i].Events)
				n += boolInt(fds[i].Revents != 0)
			}
		}
		if n == 0 && interrupted != nil {
			return 0, interrupted
		}
		if others > 0 {
			if _, err := unix.Poll(c.others[:others], 0); err != nil && n == 0 {
				return 0, err
			}
			at := 0
			for i, k := range sockets {
				if k == nil {
					fds[i].Revents = c.others[at].Revents
					n += boolInt(fds[i].Revents != 0)
					at++
				}
			}
		}
		if n == 0 && milliseconds != 0 && c.left() != 0 {
			return 0, errWait
		}
		if outcome != nil {
			return outcome(n)
		}
		return n, nil
	}
	return c
}

// selectFDs returns a call that implements rselect on top of poll.
func (s *Sockets) selectFDs(a arguments) *call {
	const most = 1024 // FD_SETSIZE
	n := a.int(0)
	if n < 0 || n > most {
		return done(0, unix.EINVAL)
	}
	var sets [3]*unix.FdSet
	for i := range sets {
		if a[1+i] != 0 {
			sets[i] = ibv.Ptr[unix.FdSet](a[1+i]).Deref()
		}
	}
	asked := [3]int16{unix.POLLIN, unix.POLLOUT, unix.POLLPRI}
	var fds []unix.PollFd
	for fd := range n {
		f := unix.PollFd{Fd: int32(fd)}
		any := false
		for i, set := range sets {
			if set != nil && set.IsSet(fd) {
				f.Events |= asked[i]
				any = true
			}
		}
		if any {
			fds = append(fds, f)
		}
	}
	milliseconds := -1
	if a[4] != 0 {
		t := ibv.Ptr[unix.Timeval](a[4]).Deref()
		if t.Sec < 0 || t.Usec < 0 {
			return done(0, unix.EINVAL)
		}
		milliseconds = int(min(t.Sec, 1<<20)*1000 + (t.Usec+999)/1000)
	}
	return s.poll(fds, milliseconds, func(int) (int, error) { return setResults(n, sets, fds) })
}

// setResults replaces the first n bits of each set by poll's results, and returns the number of bits set.
func setResults(n int, sets [3]*unix.FdSet, fds []unix.PollFd) (int, error) {
	ready := [3]int16{unix.POLLIN | unix.POLLHUP | unix.POLLERR, unix.POLLOUT | unix.POLLERR, unix.POLLPRI}
	for _, f := range fds {
		if f.Revents&unix.POLLNVAL != 0 {
			return 0, unix.EBADF
		}
	}
	total := 0
	for i, set := range sets {
		if set == nil {
			continue
		}
		was := *set
		for fd := range n {
			set.Clear(fd)
		}
		for _, f := range fds {
			if was.IsSet(int(f.Fd)) && f.Revents&ready[i] != 0 {
				set.Set(int(f.Fd))
				total++
			}
		}
	}
	return total, nil
}
