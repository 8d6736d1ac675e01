// SPDX-License-Identifier: BSD-2-Clause

package readiness

import (
	"encoding/binary"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// kept is the state for sleeping in a system call.
type kept struct {
	file *os.File // an eventfd that ends the sleep
	raw  syscall.RawConn
	fds  [2]unix.PollFd // C's descriptor and the eventfd
	look func(fd uintptr)
	err  error   // of look
	word [8]byte // read from the event
}

var one = binary.NativeEndian.AppendUint64(nil, 1)

// thread creates the state on the first call. It returns nil if the FD is closed.
func (r *FD) thread() (*kept, error) {
	if k := r.kept.Load(); k != nil {
		return k, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil, nil
	}
	if err := r.setNonblock(); err != nil {
		return nil, err
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // blocking, so that the netpoller does not watch it
	if err != nil {
		return nil, err
	}
	k := &kept{file: os.NewFile(uintptr(event), r.name)}
	if k.raw, err = k.file.SyscallConn(); err != nil {
		k.file.Close()
		return nil, err
	}
	k.fds[0] = unix.PollFd{Fd: int32(r.fd), Events: unix.POLLIN}
	k.look = func(fd uintptr) {
		k.fds[1] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		for k.err = unix.EINTR; k.err == unix.EINTR; {
			_, k.err = unix.Poll(k.fds[:], -1)
		}
	}
	r.kept.Store(k)
	return k, nil
}

// sleep returns when C's descriptor is readable, or after a poke. The eventfd stays open during the call.
func (k *kept) sleep() (readable bool, err error) {
	if k.raw.Control(k.look) != nil {
		return false, os.ErrClosed
	}
	if k.err == nil && k.fds[1].Revents != 0 {
		_, k.err = k.file.Read(k.word[:])
	}
	return k.err == nil && k.fds[0].Revents != 0, k.err
}

func (k *kept) poke() {
	if k != nil {
		_, _ = k.file.Write(one)
	}
}

// close ends a sleep, and makes the next one fail.
func (k *kept) close() {
	if k != nil {
		k.poke()
		_ = k.file.Close()
	}
}
