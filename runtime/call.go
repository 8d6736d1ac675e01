package runtime

import goruntime "runtime"

// Call3 calls the C function at fn, which takes up to three arguments of a register's size and returns an int or nothing:
// post_send, post_recv, poll_cq, req_notify_cq. It allocates nothing. Addresses among the arguments must stay valid by the caller's
// doing, and must not be on a goroutine's stack. Exclusive needs a [Stack]; asked of a Way it is System.
//
// A function of a software backend (see [Space]) is called as a Go function, whichever way is asked for.
func (w Way) Call3(fn, a, b, c uintptr) int32 {
	if inSpace(fn) {
		return int32(callSpace3(fn, a, b, c))
	}
	if w == Blocking {
		return blockingCall3(fn, a, b, c)
	}
	return systemCall3(fn, a, b, c)
}

// frame is a call with all that C can want and give. The assembly knows its layout.
type frame struct {
	fn            uintptr
	args          [8]uintptr
	result        uintptr
	errnoLocation uintptr // address of __errno_location, or 0
	errno         uintptr
}

// Wide gives argument i of a call the upper half of a number of 64 bits, which the argument alone does not have on machines with registers of 32.
// On others it is the call as it was.
func (c Call) Wide(i int, v uint64) Call {
	if wide == 0 {
		c.high[i] = uint32(v >> 32)
	}
	return c
}

// MaxArgs is how many arguments a function may take.
const MaxArgs = len(frame{}.args)

// Word is a 32-bit number, signed or not, as C's calling convention wants it in a register: with riscv64 and loong64 bit 31 fills the
// upper half of unsigned numbers, too. An int of C is uintptr(int32(v)) everywhere.
func Word(v uint32) uintptr {
	if goruntime.GOARCH == "riscv64" || goruntime.GOARCH == "loong64" {
		return uintptr(int32(v))
	}
	return uintptr(v)
}
