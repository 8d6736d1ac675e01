// SPDX-License-Identifier: BSD-2-Clause

// Package thread binds goroutines to threads, and threads to processors.
package thread

import (
	goruntime "runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Pin is rdma.PinThread.
func Pin(cpu int) (unpin func(), err error) {
	const verb = "sched_setaffinity"
	var before, one unix.CPUSet
	one.Set(cpu)
	if cpu < 0 || one.Count() != 1 {
		return nil, verberr.Invalid(verb, "", "processor %d does not exist", cpu)
	}
	goruntime.LockOSThread()
	if err = unix.SchedGetaffinity(0, &before); err == nil {
		err = unix.SchedSetaffinity(0, &one)
	}
	if err != nil {
		goruntime.UnlockOSThread()
		const reason = "the processor does not exist, or this process may not use it"
		return nil, verberr.New(verberr.Error{Verb: verb, Errno: errnoFrom(err), Reason: reason})
	}
	return func() {
		// If it fails, keep the thread locked: it ends with the goroutine.
		if unix.SchedSetaffinity(0, &before) == nil {
			goruntime.UnlockOSThread()
		}
	}, nil
}

func errnoFrom(err error) (errno syscall.Errno) {
	errno, _ = err.(syscall.Errno)
	return errno
}
