// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// waiter is a thread that waits for sockets, by reading or polling a descriptor: a signal of the program ends that, or
// the kernel begins it again, as the program's handler wants it.
type waiter struct {
	fd     int         // an eventfd
	roused atomic.Bool // it has a token
}

// idle are waiters for the next threads that wait.
var idle struct {
	sync.Mutex
	all []*waiter
}

const mostIdle = 64

func newWaiter() (*waiter, error) {
	idle.Lock()
	defer idle.Unlock()
	if n := len(idle.all); n > 0 {
		w := idle.all[n-1]
		idle.all = idle.all[:n-1]
		return w, nil
	}
	fd, err := newDescriptor()
	return &waiter{fd: fd}, err
}

// lowest is the first descriptor of sockets and waiters: programs that expect few of their own keep the lower ones.
const lowest = 32

// newDescriptor makes an eventfd.
func newDescriptor() (int, error) {
	low, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(low)
	return unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, lowest)
}

// release keeps the waiter for others. No socket has it any more.
func (w *waiter) release() {
	if w.roused.Load() && w.sleep() != nil {
		unix.Close(w.fd)
		return
	}
	idle.Lock()
	defer idle.Unlock()
	if len(idle.all) == mostIdle {
		unix.Close(w.fd)
		return
	}
	idle.all = append(idle.all, w)
}

// rouse ends a sleep, or the next one.
func (w *waiter) rouse() {
	if !w.roused.Swap(true) {
		_, _ = unix.Write(w.fd, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// sleep waits for rouse, or returns EINTR.
func (w *waiter) sleep() error {
	var b [8]byte
	if _, err := unix.Read(w.fd, b[:]); err != nil {
		return err
	}
	w.roused.Store(false)
	return nil
}

// waiters are those of a socket, with the events that each waits for.
type waiters struct {
	mu  sync.Mutex
	all map[*waiter]int16
}

func (s *waiters) add(w *waiter, events int16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*waiter]int16{}
	}
	s.all[w] |= events
}

func (s *waiters) remove(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
}

// rouse rouses those that wait for some of the events.
func (s *waiters) rouse(events int16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w, wanted := range s.all {
		if (wanted|unix.POLLERR|unix.POLLHUP)&events != 0 {
			w.rouse()
		}
	}
}
