// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watch waits until a socket can be read. Go's netpoller does not watch the socket itself, because that would wake a
// thread for every datagram, even while another goroutine polls. It watches an epoll descriptor, which becomes readable
// once after it was armed.
type watch struct {
	file *os.File
	raw  syscall.RawConn
	fd   int // the socket
	own  int // the epoll descriptor

	// Allocated once, so that waiting does not allocate.
	armed    unix.EpollEvent
	happened [1]unix.EpollEvent
	look     func(own uintptr) bool
}

func newWatch(fd int) (*watch, error) {
	own, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	w := &watch{fd: fd, own: own, armed: unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}}
	w.look = func(own uintptr) bool {
		n, err := unix.EpollWait(int(own), w.happened[:], 0)
		return n > 0 || err != nil && err != unix.EINTR
	}
	if err = unix.SetNonblock(own, true); err == nil {
		err = unix.EpollCtl(own, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT})
	}
	if err != nil {
		unix.Close(own)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	w.file = os.NewFile(uintptr(own), "udp watch")
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, err
	}
	return w, nil
}

// arm arms the descriptor for the next datagram, or one that is already there. The socket must be open.
func (w *watch) arm() error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.own, unix.EPOLL_CTL_MOD, w.fd, &w.armed))
}

// wait waits for the armed event or close. Only one goroutine may wait.
func (w *watch) wait() error { return w.raw.Read(w.look) }

func (w *watch) close() error { return w.file.Close() }
