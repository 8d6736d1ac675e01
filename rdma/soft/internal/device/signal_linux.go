//go:build !goverbs_nofd

package device

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/runtime"
)

// signal is a file that counts what is to be read.
type signal struct{ fd int32 }

func (s *signal) open() runtime.Errno {
	fd, err := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_CLOEXEC)
	if err != nil {
		if errno, ok := err.(runtime.Errno); ok {
			return errno
		}
		return enomem
	}
	s.fd = int32(fd)
	return 0
}

// descriptor is the number of the file.
func (s *signal) descriptor() int32 { return s.fd }

func (s *signal) close() { unix.Close(int(s.fd)) }

func (s *signal) raise() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(int(s.fd), one[:])
}

// lower takes one off the count, which is not 0.
func (s *signal) lower() {
	var one [8]byte
	unix.Read(int(s.fd), one[:])
}

// blocks says whether the program left the file as it was: reading it waits.
func (s *signal) blocks() bool {
	flags, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_NONBLOCK == 0
}

// sleep waits for the count, without the fabric's lock. Where the clock is virtual it looks at it now and then.
func (s *signal) sleep(f *Fabric) {
	fd, patience := s.fd, -1
	if f.clock.virtual {
		patience = 1
	}
	f.unlock()
	unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, patience)
	f.mu.Lock()
}
