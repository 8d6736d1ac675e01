// SPDX-License-Identifier: BSD-2-Clause

// Package nap lets threads of C programs wait outside Go. A function that must wait returns [Asleep] and the address of
// a [Nap]. The thread then waits in C, where signal handlers may make other calls or never return, and where
// pthread_cancel ends the wait. Finally it calls [Awake].
package nap

import (
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
)

// Asleep is the error number of a function whose thread must wait.
const Asleep runtime.Errno = 1<<31 - 1

// Outside is the suffix of the library name of backends whose functions wait outside Go.
const Outside = "/outside"

// Cancelled is passed to [Awake] instead of an error number if the thread was cancelled.
const Cancelled = ^uint64(0)

// Nap tells C how to wait: poll FDs, or if there are none, read 8 bytes from a descriptor.
type Nap struct {
	ID      uint64
	FDs     unsafe.Pointer // to pollfd structures
	Number  int32
	Timeout int32 // in milliseconds; -1 for no timeout
	File    int32
}

// Call is a call whose thread is waiting.
type Call interface {
	// Awake continues the call with the error number of the wait, or 0.
	Awake(errno runtime.Errno) (uint64, runtime.Errno)
	// Cancel releases the call's resources. The thread does not request a result.
	Cancel()
}

// asleep contains the calls of waiting threads.
var asleep struct {
	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	all map[uint64]Call
	// +checklocks:mu
	last uint64
}

// Sleep makes the thread wait before c continues. It returns the result for C. n is part of c.
func Sleep(n *Nap, c Call) (uint64, runtime.Errno) {
	asleep.mu.Lock()
	defer asleep.mu.Unlock()
	if asleep.all == nil {
		asleep.all = map[uint64]Call{}
	}
	asleep.last++
	n.ID = asleep.last
	asleep.all[n.ID] = c
	return uint64(uintptr(unsafe.Pointer(n))), Asleep
}

// Awake is called by a thread after its nap. The arguments are the nap's ID and the wait's error number, 0, or
// [Cancelled].
func Awake(args []uint64) (uint64, runtime.Errno) {
	asleep.mu.Lock()
	c := asleep.all[args[0]]
	delete(asleep.all, args[0])
	asleep.mu.Unlock()
	if args[1] == Cancelled {
		c.Cancel()
		return 0, 0
	}
	return c.Awake(runtime.Errno(args[1]))
}

// Try makes or continues a call. If it must wait and w is not nil, it calls [Waiter.Prepare] and returns [Asleep], and
// is called again after the wait. If w is nil, it blocks.
type Try func(w *Waiter) runtime.Errno

// Begin makes a call whose thread waits outside Go. Result converts an error number to the function's result.
func Begin(try Try, result func(runtime.Errno) (uint64, runtime.Errno)) (uint64, runtime.Errno) {
	return (&tried{try: try, result: result}).resume()
}

type tried struct {
	try    Try
	result func(runtime.Errno) (uint64, runtime.Errno)
	waiter Waiter
	nap    Nap
}

func (c *tried) resume() (uint64, runtime.Errno) {
	errno := c.try(&c.waiter)
	if errno == Asleep {
		c.nap.File = c.waiter.file()
		return Sleep(&c.nap, c)
	}
	c.waiter.Release()
	return c.result(errno)
}

func (c *tried) Awake(errno runtime.Errno) (uint64, runtime.Errno) {
	c.waiter.Slept(errno)
	return c.resume()
}

func (c *tried) Cancel() { c.waiter.Cancel() }

// Forever is the result of a [Try] whose thread waits for a signal.
func (w *Waiter) Forever() runtime.Errno {
	if w.Interrupted != 0 {
		return w.Interrupted
	}
	if w.Prepare(func() {}) != nil {
		select {}
	}
	return Asleep
}
