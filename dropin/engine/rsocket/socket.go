// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// state is the state of a socket. It only increases, except when the program connects again after a failure.
type state int

const (
	fresh state = iota
	bound
	listening
	connecting
	connected
	failed // connecting failed
	closed
)

// socket is an rsocket.
type socket struct {
	of      *Sockets
	fd      int // an eventfd that provides the number
	family  int
	waiters waiters
	conn    atomic.Pointer[stream.Conn] // nil until connected

	nonblock, deaf, mute atomic.Bool // O_NONBLOCK; shut down for reading and for writing

	mu      sync.Mutex // guards the fields below
	state   state
	err     error // SO_ERROR
	flags   int   // of the descriptor
	options options
	local   netip.AddrPort
	held    *cm.ID // keeps the port of a bound socket
	cancel  context.CancelFunc
	queue   *queue // of a listening socket
	maps    []mapping
}

// open implements rsocket.
func (s *Sockets) open(family, kind, protocol int) (int, error) {
	more := kind & (unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC)
	if family != unix.AF_INET && family != unix.AF_INET6 || kind != unix.SOCK_STREAM|more ||
		protocol != 0 && protocol != unix.IPPROTO_TCP {
		return 0, unix.ENOTSUP
	}
	k, err := s.newSocket(family, defaults)
	if err != nil {
		return 0, err
	}
	k.nonblock.Store(more&unix.SOCK_NONBLOCK != 0)
	if more&unix.SOCK_CLOEXEC != 0 {
		k.flags = unix.FD_CLOEXEC
	}
	s.add(k)
	return k.fd, nil
}

func (s *Sockets) newSocket(family int, o options) (*socket, error) {
	fd, err := nap.NewDescriptor()
	return &socket{of: s, fd: fd, family: family, options: o}, err
}

// config returns the configuration of the socket's streams. The caller holds mu.
func (k *socket) config() (stream.Config, error) {
	backend, err := k.of.backend()
	if err != nil {
		return stream.Config{}, unix.ENODEV
	}
	return k.options.config(backend), nil
}

// bind implements rbind. An ID keeps the port until the socket listens or connects.
func (k *socket) bind(address []byte) error {
	at, err := parseAddress(address)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != fresh {
		return unix.EINVAL
	}
	config, err := k.config()
	if err != nil {
		return err
	}
	id, err := cm.CreateIDOn(config.Backend, rdmacmTCP)
	if err != nil {
		return err
	}
	if k.options.reuse {
		err = id.SetReuseAddr(true)
	}
	if err == nil {
		err = id.Bind(at)
	}
	if err != nil {
		return errors.Join(err, id.Close())
	}
	k.held, k.state = id, bound
	k.local = id.LocalAddr()
	return nil
}

// releasePort releases the port of a bound socket, so that a stream can bind it. The caller holds mu.
func (k *socket) releasePort() error {
	if k.held == nil {
		return nil
	}
	err := k.held.Close()
	k.held = nil
	return err
}

// shutdown implements rshutdown.
func (k *socket) shutdown(how int) error {
	c := k.conn.Load()
	switch {
	case how < unix.SHUT_RD || how > unix.SHUT_RDWR:
		return unix.EINVAL
	case c == nil:
		return unix.ENOTCONN
	}
	if how != unix.SHUT_WR {
		k.deaf.Store(true)
	}
	if how != unix.SHUT_RD && !k.mute.Swap(true) {
		if err := c.CloseWrite(); err != nil && c.Ready().Err == nil {
			return err
		}
	}
	k.waiters.wake(^0)
	return nil
}

// close implements rclose. It waits for a limited time until sent data has arrived; signals do not end the wait.
func (s *Sockets) close(fd int32) *call {
	s.mu.Lock()
	k := s.all[fd]
	delete(s.all, fd)
	s.mu.Unlock()
	if k == nil {
		return &call{plain: true, try: func(error) (int, error) { return 0, unix.EBADF }}
	}
	if k.conn.Load() == nil {
		k.end()
		return &call{plain: true, try: func(error) (int, error) { return 0, nil }}
	}
	var over atomic.Bool
	go func() {
		k.end()
		over.Store(true)
		k.waiters.wake(^0)
	}()
	return &call{plain: true, waits: []awaited{{k, 0}}, try: func(error) (int, error) {
		if !over.Load() {
			return 0, errWait
		}
		return 0, nil
	}}
}

// end releases everything. Threads that wait for the socket get EBADF.
func (k *socket) end() {
	k.mu.Lock()
	k.state = closed
	cancel, queue, c := k.cancel, k.queue, k.conn.Load()
	_ = k.releasePort()
	k.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if queue != nil {
		queue.close()
	}
	if c != nil {
		_ = c.Close() // the program can do nothing if notifying the peer failed
	}
	k.waiters.wake(^0)
	unix.Close(k.fd)
}

// control implements rfcntl.
func (k *socket) control(command, value int) (int, error) {
	switch command {
	case unix.F_GETFL:
		flags := unix.O_RDWR
		if k.nonblock.Load() {
			flags |= unix.O_NONBLOCK
		}
		return flags, nil
	case unix.F_SETFL:
		k.nonblock.Store(value&unix.O_NONBLOCK != 0)
		return 0, nil
	case unix.F_GETFD, unix.F_SETFD:
		k.mu.Lock()
		defer k.mu.Unlock()
		if command == unix.F_GETFD {
			return k.flags, nil
		}
		k.flags = value
		return 0, nil
	}
	return 0, unix.ENOTSUP
}

// errnoOf returns the error number for C.
func errnoOf(err error) runtime.Errno {
	var errno runtime.Errno
	var verb *rdma.VerbError
	var status *rdma.CompletionError
	switch {
	case err == nil || err == io.EOF:
		return 0
	case errors.Is(err, net.ErrClosed):
		return unix.EBADF
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return unix.ETIMEDOUT
	case errors.Is(err, context.Canceled):
		return unix.ECONNABORTED
	case errors.As(err, &errno) && errno != 0:
		return errno
	case errors.As(err, &verb) && verb.Errno != 0:
		return verb.Errno
	case errors.As(err, &status):
		return unix.ECONNRESET
	}
	return unix.EIO
}
