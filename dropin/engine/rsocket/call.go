// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"errors"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

// call is a call of C under way. A thread that has to wait does so in C, so that handlers of signals may do there what
// they may do during a system call: make other calls, or never return.
type call struct {
	// try does what can be done now, or returns errWait. It is told why a sleep ended early.
	try func(interrupted error) (int, error)

	waits  []awaited
	others []unix.PollFd // descriptors that the kernel knows, if it waits for such
	polls  bool          // the sleep is a poll, and not a read, which the kernel begins again after some signals
	end    time.Time     // of a poll, or zero
	plain  bool          // returns its error instead of -1

	nap     Nap
	waiter  *waiter
	resting []*cm.Conn
}

// awaited are events of a socket.
type awaited struct {
	socket *socket
	events int16
}

// Nap is how a thread waits, as C sees it: it polls, or reads 8 bytes from a descriptor if there is nothing to poll.
type Nap struct {
	ID      uint64
	FDs     *unix.PollFd
	Number  int32
	Timeout int32
	File    int32
}

// Asleep is the error number of a function whose thread has to sleep.
const Asleep runtime.Errno = 1<<31 - 1

var errWait = errors.New("the call has to wait")

// naps are the calls whose threads sleep.
type naps struct {
	mu   sync.Mutex
	all  map[uint64]*call
	last uint64
}

func (n *naps) add(c *call) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = map[uint64]*call{}
	}
	n.last++
	c.nap.ID = n.last
	n.all[n.last] = c
}

func (n *naps) take(id uint64) *call {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.all[id]
	delete(n.all, id)
	return c
}

// begin makes a call, as far as it can be made without sleep.
func (s *Sockets) begin(c *call) (uint64, runtime.Errno) {
	n, err := c.try(nil)
	if err != errWait {
		return c.result(n, err)
	}
	if c.waiter, err = newWaiter(); err != nil {
		return c.result(0, err)
	}
	for _, a := range c.waits {
		a.socket.waiters.add(c.waiter, a.events)
	}
	c.rest()
	return s.goOn(c, nil)
}

// Awake goes on with a call whose thread has slept: the ID of its nap, and the error number of the sleep.
func (s *Sockets) Awake(a []uint64) (uint64, runtime.Errno) {
	c := s.naps.take(a[0])
	if c == nil {
		return ^uint64(0), unix.EINVAL
	}
	var interrupted error
	switch {
	case a[1] != 0:
		interrupted = runtime.Errno(a[1])
	case !c.polls:
		c.waiter.roused.Store(false)
	case c.others[len(c.others)-1].Revents != 0:
		_ = c.waiter.sleep() // it does not: there is a token
	}
	return s.goOn(c, interrupted)
}

func (s *Sockets) goOn(c *call, interrupted error) (uint64, runtime.Errno) {
	n, err := c.try(interrupted)
	if err == errWait {
		c.rest()
		c.nap = Nap{File: int32(c.waiter.fd), Timeout: c.left()}
		if c.polls {
			if n := len(c.others); n == 0 || c.others[n-1].Fd != int32(c.waiter.fd) {
				c.others = append(c.others, unix.PollFd{Fd: int32(c.waiter.fd), Events: unix.POLLIN})
			}
			c.nap.FDs, c.nap.Number = &c.others[0], int32(len(c.others))
		}
		s.naps.add(c)
		return uint64(uintptr(unsafe.Pointer(&c.nap))), Asleep
	}
	for _, a := range c.waits {
		a.socket.waiters.remove(c.waiter)
	}
	for _, conn := range c.resting {
		conn.Rest(false)
	}
	c.waiter.release()
	return c.result(n, err)
}

// rest has what arrives for the sockets handled while the thread sleeps.
func (c *call) rest() {
	if len(c.resting) == len(c.waits) {
		return
	}
	for _, conn := range c.resting {
		conn.Rest(false)
	}
	c.resting = c.resting[:0]
	for _, a := range c.waits {
		if conn := a.socket.conn.Load(); conn != nil {
			conn.Rest(true)
			c.resting = append(c.resting, conn)
		}
	}
}

// left is the time until the end, in milliseconds; -1 is for ever.
func (c *call) left() int32 {
	if c.end.IsZero() {
		return -1
	}
	return int32(max(0, (time.Until(c.end)+time.Millisecond-1)/time.Millisecond))
}

// result is what C's function returns, and errno.
func (c *call) result(n int, err error) (uint64, runtime.Errno) {
	switch {
	case c.plain:
		return uint64(errnoOf(err)), 0
	case err != nil:
		return ^uint64(0), errnoOf(err)
	}
	return uint64(n), 0
}
