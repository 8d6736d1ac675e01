// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/runtime"
)

// The functions in this file differ only in the number of arguments.

// Func0 to Func6 adapt functions that return a value and an errno.
func Func0[R Value](f func() (R, runtime.Errno)) runtime.Func {
	return func([]uint64) (uint64, runtime.Errno) {
		r, errno := f()
		return uint64(r), errno
	}
}

func Func1[A, R Value](f func(A) (R, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		r, errno := f(A(a[0]))
		return uint64(r), errno
	}
}

func Func2[A, B, R Value](f func(A, B) (R, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		r, errno := f(A(a[0]), B(a[1]))
		return uint64(r), errno
	}
}

func Func3[A, B, C, R Value](f func(A, B, C) (R, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		r, errno := f(A(a[0]), B(a[1]), C(a[2]))
		return uint64(r), errno
	}
}

func Func4[A, B, C, D, R Value](f func(A, B, C, D) (R, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		r, errno := f(A(a[0]), B(a[1]), C(a[2]), D(a[3]))
		return uint64(r), errno
	}
}

func Func5[A, B, C, D, E, R Value](f func(A, B, C, D, E) (R, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		r, errno := f(A(a[0]), B(a[1]), C(a[2]), D(a[3]), E(a[4]))
		return uint64(r), errno
	}
}

func Func6[A, B, C, D, E, F, R Value](f func(A, B, C, D, E, F) (R, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		r, errno := f(A(a[0]), B(a[1]), C(a[2]), D(a[3]), E(a[4]), F(a[5]))
		return uint64(r), errno
	}
}

// Take1 to Take6 adapt functions with one result, which Number, Status or another function encodes.
func Take1[A Value, R any](f func(A) R) func(Args) R {
	return func(a Args) R { return f(A(a[0])) }
}

func Take2[A, B Value, R any](f func(A, B) R) func(Args) R {
	return func(a Args) R { return f(A(a[0]), B(a[1])) }
}

func Take3[A, B, C Value, R any](f func(A, B, C) R) func(Args) R {
	return func(a Args) R { return f(A(a[0]), B(a[1]), C(a[2])) }
}

func Take4[A, B, C, D Value, R any](f func(A, B, C, D) R) func(Args) R {
	return func(a Args) R { return f(A(a[0]), B(a[1]), C(a[2]), D(a[3])) }
}

func Take5[A, B, C, D, E Value, R any](f func(A, B, C, D, E) R) func(Args) R {
	return func(a Args) R { return f(A(a[0]), B(a[1]), C(a[2]), D(a[3]), E(a[4])) }
}

func Take6[A, B, C, D, E, F Value, R any](f func(A, B, C, D, E, F) R) func(Args) R {
	return func(a Args) R { return f(A(a[0]), B(a[1]), C(a[2]), D(a[3]), E(a[4]), F(a[5])) }
}

// Wait2 and Wait3 adapt functions that may block.
func Wait2[A, B Value](f func(A, B, *nap.Waiter) runtime.Errno) func(Args, *nap.Waiter) runtime.Errno {
	return func(a Args, w *nap.Waiter) runtime.Errno { return f(A(a[0]), B(a[1]), w) }
}

func Wait3[A, B, C Value](f func(A, B, C, *nap.Waiter) runtime.Errno) func(Args, *nap.Waiter) runtime.Errno {
	return func(a Args, w *nap.Waiter) runtime.Errno { return f(A(a[0]), B(a[1]), C(a[2]), w) }
}

// After0 to After5 adapt functions of an object that was looked up. They decode the registers after it.
func After0[O, R any](f func(*O) R) func(*O, Args) R {
	return func(o *O, _ Args) R { return f(o) }
}

func After1[O any, A Value, R any](f func(*O, A) R) func(*O, Args) R {
	return func(o *O, a Args) R { return f(o, A(a[1])) }
}

func After2[O any, A, B Value, R any](f func(*O, A, B) R) func(*O, Args) R {
	return func(o *O, a Args) R { return f(o, A(a[1]), B(a[2])) }
}

func After3[O any, A, B, C Value, R any](f func(*O, A, B, C) R) func(*O, Args) R {
	return func(o *O, a Args) R { return f(o, A(a[1]), B(a[2]), C(a[3])) }
}

func After4[O any, A, B, C, D Value, R any](f func(*O, A, B, C, D) R) func(*O, Args) R {
	return func(o *O, a Args) R { return f(o, A(a[1]), B(a[2]), C(a[3]), D(a[4])) }
}

func After5[O any, A, B, C, D, E Value, R any](f func(*O, A, B, C, D, E) R) func(*O, Args) R {
	return func(o *O, a Args) R { return f(o, A(a[1]), B(a[2]), C(a[3]), D(a[4]), E(a[5])) }
}

// New0 to New5 adapt functions of an object that return a value and an errno.
func New0[O any, R Value](f func(*O) (R, runtime.Errno)) func(*O, Args) (R, runtime.Errno) {
	return func(o *O, _ Args) (R, runtime.Errno) { return f(o) }
}

func New1[O any, A Value, R Value](f func(*O, A) (R, runtime.Errno)) func(*O, Args) (R, runtime.Errno) {
	return func(o *O, a Args) (R, runtime.Errno) { return f(o, A(a[1])) }
}

func New2[O any, A, B Value, R Value](f func(*O, A, B) (R, runtime.Errno)) func(*O, Args) (R, runtime.Errno) {
	return func(o *O, a Args) (R, runtime.Errno) { return f(o, A(a[1]), B(a[2])) }
}

func New3[O any, A, B, C Value, R Value](f func(*O, A, B, C) (R, runtime.Errno)) func(*O, Args) (R, runtime.Errno) {
	return func(o *O, a Args) (R, runtime.Errno) { return f(o, A(a[1]), B(a[2]), C(a[3])) }
}

func New4[O any, A, B, C, D Value, R Value](f func(*O, A, B, C, D) (R, runtime.Errno)) func(*O, Args) (R, runtime.Errno) {
	return func(o *O, a Args) (R, runtime.Errno) { return f(o, A(a[1]), B(a[2]), C(a[3]), D(a[4])) }
}

func New5[O any, A, B, C, D, E Value, R Value](f func(*O, A, B, C, D, E) (R, runtime.Errno)) func(*O, Args) (R, runtime.Errno) {
	return func(o *O, a Args) (R, runtime.Errno) { return f(o, A(a[1]), B(a[2]), C(a[3]), D(a[4]), E(a[5])) }
}
