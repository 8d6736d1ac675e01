// SPDX-License-Identifier: BSD-2-Clause

package runtime

import goruntime "runtime"

// Call3 calls the C function at fn, which takes up to three register-sized arguments and returns an int or nothing:
// post_send, post_recv, poll_cq, req_notify_cq. It does not allocate. The caller keeps addresses among the arguments
// valid; they must not be on a goroutine's stack.
//
// A function of a software backend (see [Space]) is always called as a Go function.
func (w Way) Call3(fn, a, b, c uintptr) int32 {
	if inSpace(fn) {
		return int32(callSpace3(fn, a, b, c))
	}
	if w == Blocking {
		return blockingCall3(fn, a, b, c)
	}
	return systemCall3(fn, a, b, c)
}

// Bound is a C function and the object that is its first argument.
type Bound struct{ Fn, Object uintptr }

// frame holds a call: the arguments of C and its results. The assembly depends on its layout.
type frame struct {
	fn            uintptr
	args          [9]uintptr
	result        uintptr
	errnoLocation uintptr // address of __errno_location, or 0
	errno         uintptr
}

// maxArgs is the largest number of arguments of a function.
const maxArgs = len(frame{}.args)

// Word returns a 32-bit number in the register format of C's calling convention: on riscv64 and loong64, bit 31 also
// extends unsigned numbers. A C int is uintptr(int32(v)) everywhere.
func Word(v uint32) uintptr {
	if goruntime.GOARCH == "riscv64" || goruntime.GOARCH == "loong64" {
		return uintptr(int32(v))
	}
	return uintptr(v)
}
