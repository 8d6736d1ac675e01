// SPDX-License-Identifier: BSD-2-Clause

// Package abi makes functions with Go types out of functions of C: it decodes the registers of [runtime.Func], and
// encodes results.
//
// A pointer of C is an [ibv.Ptr] and stays an address until the function has checked it: what a program passes may be
// no memory at all, and a Go pointer to such a place would end the process when the stack grows.
package abi

import (
	"runtime/debug"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// Value is what a register holds: a number, an enumeration, or an ibv.Ptr. An argument has the lowest bits of its
// register, whatever C left in the others; a negative result fills the register with its sign.
type Value interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint | ~uintptr
}

// Address is what an object is named by: a register, or a pointer of C.
type Address interface{ ~uint64 | ~uintptr }

// Args are the registers of a call.
type Args []uint64

// Failure is −1, as functions return it that set errno.
const Failure = ^uint64(0)

// How functions answer.

// Number is for functions that return the number of an error.
func Number(f func(Args) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return uint64(f(a)), 0 }
}

// Status is for functions that return 0, or −1 and errno.
func Status(f func(Args) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return status(f(a)) }
}

// Waiting is a function that may have to wait, and returns 0, or −1 and errno.
type Waiting struct {
	InGo    runtime.Func // it waits in Go
	Outside runtime.Func // its thread waits outside Go
}

// Again is for functions that begin anew after they have waited.
func Again(f func(Args, *nap.Waiter) runtime.Errno) Waiting {
	return Waiting{
		InGo: Status(func(a Args) runtime.Errno { return f(a, nil) }),
		Outside: outside(func(a Args) nap.Try {
			return func(w *nap.Waiter) runtime.Errno { return f(a, w) }
		}),
	}
}

// InSteps is for functions that go on after they have waited.
func InSteps(f func(Args) nap.Try) Waiting {
	return Waiting{InGo: Status(func(a Args) runtime.Errno { return f(a)(nil) }), Outside: outside(f)}
}

// outside is for functions whose threads wait outside Go. The registers stay as they are until the call is over.
func outside(f func(Args) nap.Try) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		try := f(a)
		guarded := func(w *nap.Waiter) runtime.Errno {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			return try(w)
		}
		return nap.Begin(guarded, status)
	}
}

func status(errno runtime.Errno) (uint64, runtime.Errno) {
	if errno != 0 {
		return Failure, errno
	}
	return 0, 0
}

// Void is for functions that return nothing; errno may say that they did nothing.
func Void(f func(Args) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return 0, f(a) }
}

// Result is for functions whose result says everything.
func Result[R Value](f func(Args) R) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return uint64(f(a)), 0 }
}

// Constant is for functions that always answer the same.
func Constant[R Value](r R) runtime.Func {
	return func([]uint64) (uint64, runtime.Errno) { return uint64(r), 0 }
}

// Guarded lets a function panic, and not end the process, where memory that its caller names is not there: it may have
// the fabric's lock.
func Guarded(f runtime.Func) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		return f(a)
	}
}

// Of is for functions of an object, which the first register names. One that is not there is EINVAL.
func Of[O any](find func(address uint64) *O, f func(*O, Args) runtime.Errno) func(Args) runtime.Errno {
	return func(a Args) runtime.Errno {
		o := find(a[0])
		if o == nil {
			return syscall.EINVAL
		}
		return f(o, a)
	}
}

// TryOf is Of of functions that may have to wait.
func TryOf[O any](find func(address uint64) *O, f func(*O, Args) nap.Try) func(Args) nap.Try {
	return func(a Args) nap.Try {
		o := find(a[0])
		if o == nil {
			return func(*nap.Waiter) runtime.Errno { return syscall.EINVAL }
		}
		return f(o, a)
	}
}

// List is the n values at an address: none where there are more than most, or where there is no address.
func List[T any](p ibv.Ptr[T], n uint64, most int) (list []T, ok bool) {
	if n > uint64(most) || n > 0 && p == 0 {
		return nil, false
	}
	if n == 0 {
		return nil, true
	}
	return mem.List[T](uint64(p), int(n)), true
}

// Text is a string of C without its NUL. One that is longer than most bytes is no string, and neither is NULL. Nothing
// behind the NUL is read.
func Text(p ibv.Ptr[byte], most int) (s string, ok bool) {
	if p == 0 {
		return "", false
	}
	for n := range most + 1 {
		if *mem.At[byte](uint64(p) + uint64(n)) == 0 {
			return string(mem.List[byte](uint64(p), n)), true
		}
	}
	return "", false
}
