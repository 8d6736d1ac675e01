// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// call is a C call in progress. A thread that has to wait does so in C, so that signal handlers may act as during a
// system call: make other calls, or never return.
type call struct {
	// try does as much as it can without waiting, or returns errWait. interrupted is the reason why a sleep ended
	// early.
	try func(interrupted error) (int, error)

	waits  []awaited
	others []unix.PollFd // kernel descriptors, if the call waits for any
	polls  bool          // sleep in poll, not in a read, which the kernel restarts after some signals
	end    time.Time     // the deadline of a poll, or zero
	plain  bool          // return the error number instead of -1

	nap     nap.Nap
	waiter  nap.Waiter
	resting []*stream.Conn
}

// awaited are events of a socket.
type awaited struct {
	socket *socket
	events int16
}

var errWait = errors.New("the call has to wait")

// begin starts a call and runs it as far as it can without sleeping.
func begin(c *call) (uint64, runtime.Errno) {
	n, err := c.try(nil)
	if err != errWait {
		return c.result(n, err)
	}
	if err := c.waiter.Prepare(c.unregister); err != nil {
		return c.result(0, err)
	}
	for _, a := range c.waits {
		a.socket.waiters.add(&c.waiter, a.events)
	}
	c.handleWhileAsleep()
	return c.resume(nil)
}

// Awake continues the call after its thread has slept.
func (c *call) Awake(errno runtime.Errno) (uint64, runtime.Errno) {
	var interrupted error
	switch {
	case errno != 0:
		interrupted = errno
	case !c.polls:
		c.waiter.Slept(0)
	case c.others[len(c.others)-1].Revents != 0:
		c.waiter.Polled()
	}
	return c.resume(interrupted)
}

// Cancel releases the call's resources, because its thread ends.
func (c *call) Cancel() { c.waiter.Cancel() }

func (c *call) resume(interrupted error) (uint64, runtime.Errno) {
	n, err := c.try(interrupted)
	if err == errWait {
		c.handleWhileAsleep()
		c.nap = nap.Nap{File: c.waiter.FD(), Timeout: c.left()}
		if c.polls {
			if n := len(c.others); n == 0 || c.others[n-1].Fd != c.waiter.FD() {
				c.others = append(c.others, unix.PollFd{Fd: c.waiter.FD(), Events: unix.POLLIN})
			}
			c.nap.FDs, c.nap.Number = unsafe.Pointer(&c.others[0]), int32(len(c.others))
		}
		return nap.Sleep(&c.nap, c)
	}
	c.waiter.Release()
	return c.result(n, err)
}

// unregister undoes what begin and handleWhileAsleep did.
func (c *call) unregister() {
	for _, a := range c.waits {
		a.socket.waiters.remove(&c.waiter)
	}
	for _, conn := range c.resting {
		conn.Rest(false)
	}
}

// handleWhileAsleep makes the connections handle arriving data while the thread sleeps.
func (c *call) handleWhileAsleep() {
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

// left returns the time until the deadline in milliseconds, or -1 without one.
func (c *call) left() int32 {
	if c.end.IsZero() {
		return -1
	}
	return int32(max(0, (time.Until(c.end)+time.Millisecond-1)/time.Millisecond))
}

// result returns the result of the C function, and errno.
func (c *call) result(n int, err error) (uint64, runtime.Errno) {
	switch {
	case c.plain:
		return uint64(errnoOf(err)), 0
	case err != nil:
		return ^uint64(0), errnoOf(err)
	}
	return uint64(n), 0
}
