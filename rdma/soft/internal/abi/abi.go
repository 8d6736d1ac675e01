// SPDX-License-Identifier: BSD-2-Clause

// Package abi adapts Go functions to the C calling convention of [runtime.Func]: it decodes arguments from registers
// and encodes results.
//
// C pointers are [ibv.Ptr] values and stay addresses until the function has checked them: a program may pass any
// address, and an invalid Go pointer would crash the process when the stack grows.
package abi

import (
	"runtime/debug"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// Value is a type that fits in a register: a number, an enumeration, or an ibv.Ptr. An argument uses the low bits of
// its register, whatever C left in the others; a negative result is sign-extended.
type Value interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint | ~uintptr
}

// Address identifies an object: a register, or a C pointer.
type Address interface{ ~uint64 | ~uintptr }

// Args are the registers of a call.
type Args []uint64

// Failure is −1, the result of functions that set errno.
const Failure = ^uint64(0)

// Number adapts a function that returns an errno.
func Number(f func(Args) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return uint64(f(a)), 0 }
}

// Status adapts a function that returns 0, or −1 and sets errno.
func Status(f func(Args) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return status(f(a)) }
}

// Waiting is a function that may block, and returns 0, or −1 and sets errno.
type Waiting struct {
	InGo    runtime.Func // its goroutine waits
	Outside runtime.Func // its thread waits in C
}

// Again adapts a function that restarts after it has waited.
func Again(f func(Args, *nap.Waiter) runtime.Errno) Waiting {
	return Waiting{
		InGo: Status(func(a Args) runtime.Errno { return f(a, nil) }),
		Outside: outside(func(a Args) nap.Try {
			return func(w *nap.Waiter) runtime.Errno { return f(a, w) }
		}),
	}
}

// InSteps adapts a function that continues after it has waited.
func InSteps(f func(Args) nap.Try) Waiting {
	return Waiting{InGo: Status(func(a Args) runtime.Errno { return f(a)(nil) }), Outside: outside(f)}
}

// outside adapts a function whose thread waits in C. The registers are unchanged until the call ends.
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

// Void adapts a function without a result. The errno tells the caller in Go about a failure.
func Void(f func(Args) runtime.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return 0, f(a) }
}

// Result adapts a function that does not set errno.
func Result[R Value](f func(Args) R) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return uint64(f(a)), 0 }
}

// Constant returns a function that always returns r.
func Constant[R Value](r R) runtime.Func {
	return func([]uint64) (uint64, runtime.Errno) { return uint64(r), 0 }
}

// Guarded turns a fault in the caller's memory into a panic instead of a crash, because the function may hold the
// fabric's lock.
func Guarded(f runtime.Func) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		return f(a)
	}
}

// Of adapts a function of the object in the first register. It returns EINVAL if there is no such object.
func Of[O any](find func(address uint64) *O, f func(*O, Args) runtime.Errno) func(Args) runtime.Errno {
	return func(a Args) runtime.Errno {
		o := find(a[0])
		if o == nil {
			return syscall.EINVAL
		}
		return f(o, a)
	}
}

// TryOf is Of for functions that may block.
func TryOf[O any](find func(address uint64) *O, f func(*O, Args) nap.Try) func(Args) nap.Try {
	return func(a Args) nap.Try {
		o := find(a[0])
		if o == nil {
			return func(*nap.Waiter) runtime.Errno { return syscall.EINVAL }
		}
		return f(o, a)
	}
}

// NewRecord adapts a function of an object and a C structure. It returns EINVAL for NULL.
func NewRecord[O, T any](f func(*O, *T) (uint64, runtime.Errno)) func(*O, Args) (uint64, runtime.Errno) {
	return func(o *O, a Args) (uint64, runtime.Errno) {
		if a[1] == 0 {
			return 0, syscall.EINVAL
		}
		return f(o, mem.At[T](a[1]))
	}
}

// AfterRecord is NewRecord for functions that return only an errno.
func AfterRecord[O, T any](f func(*O, *T) runtime.Errno) func(*O, Args) runtime.Errno {
	call := NewRecord(func(o *O, v *T) (uint64, runtime.Errno) { return 0, f(o, v) })
	return func(o *O, a Args) runtime.Errno {
		_, errno := call(o, a)
		return errno
	}
}

// List returns the n values at an address. It fails if n exceeds most, or if n > 0 and the address is NULL.
func List[T any](p ibv.Ptr[T], n uint64, most int) (list []T, ok bool) {
	if n > uint64(most) || n > 0 && p == 0 {
		return nil, false
	}
	if n == 0 {
		return nil, true
	}
	return mem.List[T](uint64(p), int(n)), true
}

// Text returns a C string without its NUL. It fails for NULL, and for strings longer than most bytes. It reads nothing
// after the NUL.
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
