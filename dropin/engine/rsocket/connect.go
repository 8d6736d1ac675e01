// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/stream"
)

const rdmacmTCP = rdmacm.PS_TCP

// connect implements rconnect. A signal ends the wait but not the attempt, as with connect(2).
func (k *socket) connect(address []byte) *call {
	to, err := parseAddress(address)
	if err == nil {
		err = k.startConnect(to)
	}
	switch {
	case err != nil:
		return done(0, err)
	case k.nonblock.Load():
		return done(0, unix.EINPROGRESS)
	}
	return &call{waits: []awaited{{k, unix.POLLOUT}}, try: func(interrupted error) (int, error) {
		switch err := k.connectError(); {
		case err != unix.EAGAIN:
			return 0, err
		case interrupted != nil:
			return 0, interrupted
		}
		return 0, errWait
	}}
}

// connectError returns EAGAIN while the socket connects, and afterwards the error of the attempt, once.
func (k *socket) connectError() error {
	k.mu.Lock()
	now := k.state
	k.mu.Unlock()
	if now == connecting {
		return unix.EAGAIN
	}
	return k.takeError()
}

func (k *socket) startConnect(to netip.AddrPort) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch k.state {
	case fresh, bound, failed:
	case connecting:
		return unix.EALREADY
	case connected:
		return unix.EISCONN
	default:
		return unix.EINVAL
	}
	config, err := k.config()
	if err != nil {
		return err
	}
	if err := k.releasePort(); err != nil {
		return err
	}
	dialer := stream.Dialer{Config: config, LocalAddr: k.local}
	if k.local.Addr().IsUnspecified() {
		dialer.LocalAddr = netip.AddrPortFrom(netip.Addr{}, k.local.Port())
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.state, k.err, k.cancel = connecting, nil, cancel
	go func() {
		c, err := dialer.Dial(ctx, to.String())
		k.finishDial(c, err)
	}()
	return nil
}

// finishDial records the outcome of dialing.
func (k *socket) finishDial(c *stream.Conn, err error) {
	k.mu.Lock()
	switch done := k.state == closed; {
	case err != nil && !done:
		k.state, k.err = failed, err
	case err == nil && !done:
		k.takeConn(c)
	case err == nil:
		defer c.Close()
	}
	k.mu.Unlock()
	k.waiters.wake(^0)
}

// takeConn makes the socket a connected one. The caller holds mu, or nothing else uses the socket yet.
func (k *socket) takeConn(c *stream.Conn) {
	c.Watch(func(r stream.Readiness) { k.waiters.wake(eventsOf(r)) })
	k.conn.Store(c)
	k.state = connected
}

// takeError returns the value of SO_ERROR.
func (k *socket) takeError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == closed {
		return unix.EBADF
	}
	err := k.err
	k.err = nil
	return err
}

// stream returns the connection for sending and receiving, or EAGAIN while the socket connects.
func (k *socket) stream() (*stream.Conn, error) {
	if c := k.conn.Load(); c != nil {
		return c, nil
	}
	if err := k.connectError(); err != nil {
		return nil, err
	}
	if c := k.conn.Load(); c != nil {
		return c, nil
	}
	return nil, unix.ENOTCONN
}
