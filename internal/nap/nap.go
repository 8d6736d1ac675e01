// SPDX-License-Identifier: BSD-2-Clause

// Package nap lets threads of C programs wait outside Go. A function that has to wait returns [Asleep] and the address
// of a [Nap]; the thread takes it in C, where signal handlers may make other calls or never return, and where
// pthread_cancel ends the wait; then it calls [Awake].
package nap

import (
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
)

// Asleep is the error number of a function whose thread has to wait.
const Asleep runtime.Errno = 1<<31 - 1

// Outside is appended to the name of a library of a backend: the functions of that library wait outside Go.
const Outside = "/outside"

// Cancelled is what [Awake] gets, instead of an error number, from a thread that was cancelled.
const Cancelled = ^uint64(0)

// Nap is how a thread waits, as C sees it: it polls, or reads 8 bytes from a descriptor if there is nothing to poll.
type Nap struct {
	ID      uint64
	FDs     unsafe.Pointer // to pollfd structures
	Number  int32
	Timeout int32 // in milliseconds; -1 is without end
	File    int32
}

// Call is a call whose thread waits.
type Call interface {
	// Awake goes on with the call. It gets the error number of the wait, or 0.
	Awake(errno runtime.Errno) (uint64, runtime.Errno)
	// Cancel releases what the call has. Its thread never asks for a result.
	Cancel()
}

// asleep are the calls whose threads wait.
var asleep struct {
	mu sync.Mutex // guards what follows
	// +checklocks:mu
	all map[uint64]Call
	// +checklocks:mu
	last uint64
}

// Sleep returns what a function returns whose thread takes a nap before c goes on. The nap is part of c.
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

// Awake is the function that a thread calls after its nap: with the nap's ID, and the wait's error number, 0, or
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

// Try makes a call, or goes on with it. With a waiter it returns [Asleep] where it has to wait, after [Waiter.Prepare],
// and is called again. With nil it waits itself.
type Try func(w *Waiter) runtime.Errno

// Begin makes a call whose thread waits outside Go. Result makes the function's result of an error number.
func Begin(try Try, result func(runtime.Errno) (uint64, runtime.Errno)) (uint64, runtime.Errno) {
	return (&tried{try: try, result: result}).goOn()
}

type tried struct {
	try    Try
	result func(runtime.Errno) (uint64, runtime.Errno)
	waiter Waiter
	nap    Nap
}

func (c *tried) goOn() (uint64, runtime.Errno) {
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
	return c.goOn()
}

func (c *tried) Cancel() { c.waiter.Cancel() }

// Forever is what a [Try] returns whose thread is never woken, but by a signal.
func (w *Waiter) Forever() runtime.Errno {
	if w.Interrupted != 0 {
		return w.Interrupted
	}
	if w.Prepare(func() {}) != nil {
		select {}
	}
	return Asleep
}
