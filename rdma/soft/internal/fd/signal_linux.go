// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package fd

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// Signal is an eventfd that counts unread events.
type Signal struct{ fd int32 }

func (s *Signal) Open() runtime.Errno {
	fd, err := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_CLOEXEC)
	if err != nil {
		return errnoOf(err)
	}
	s.fd = int32(fd)
	return 0
}

func (s *Signal) Descriptor() int32 { return s.fd }

func (s *Signal) Close() { unix.Close(int(s.fd)) }

func (s *Signal) Raise() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(int(s.fd), one[:])
}

// Lower decrements the count, which is not 0.
func (s *Signal) Lower() {
	var one [8]byte
	unix.Read(int(s.fd), one[:])
}

// Blocks reports whether reads of the file block, as they do unless the program has changed it.
func (s *Signal) Blocks() bool {
	flags, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK == 0
}

// Sleep waits for the count without the caller's lock. With looks, it returns after at most a millisecond. Like read,
// it fails with EINTR if the thread handled a signal without SA_RESTART.
func (s *Signal) Sleep(unlock, lock func(), looks bool) runtime.Errno {
	fd := s.fd
	unlock()
	defer lock()
	if looks {
		unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, 1)
		return 0
	}
	var one [8]byte
	switch _, err := unix.Read(int(fd), one[:]); err {
	case nil: // the event is still unread
		unix.Write(int(fd), one[:])
		return 0
	case unix.EAGAIN: // the program made the file nonblocking
		return 0
	default:
		return errnoOf(err)
	}
}
