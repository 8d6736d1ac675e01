// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

package runtime

import (
	"os"
	"unsafe"
)

// fast is true if this release of Go was tested with the linknames below, which access Go's runtime. Test a new minor
// release before you add it to the build tags of this file and of the assembly.
const fast = true

//go:noescape
func currentG() uintptr

// CallDirect calls a C function with its object and two more arguments the System way, by a stack switch of a few
// instructions. It is for functions that are called millions of times a second, and only if [Direct] is true. Convert
// the address of Go memory to uintptr in the parentheses of the call: that keeps the memory alive and in place.
//
//go:uintptrescapes
//go:noescape
func CallDirect(f *Bound, b, c uintptr) (result int32)

//go:noescape
func asmcgocall3(fn, a, b, c uintptr) (result int32)

//go:noescape
func systemStacks(seen *uintptr) (computed uintptr)

func thunks() (call3, callFrame, readByte uintptr)

// cgocall runs thunk(argument) on the system stack, after notifying the scheduler. cgo and purego use it.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(thunk, argument unsafe.Pointer) int32

var thunk3, thunkFrame, thunkByte = thunks()

// call3 holds the arguments of thunk3 in its order.
type call3 struct{ fn, a, b, c uintptr }

// blockingCall3 keeps its arguments on the goroutine's stack, as cgo does. The stack cannot move while C runs, because
// these functions do not call back into Go.
func blockingCall3(fn, a, b, c uintptr) int32 {
	args := call3{fn, a, b, c}
	return cgocall(*(*unsafe.Pointer)(unsafe.Pointer(&thunk3)), unsafe.Pointer(&args))
}

// systemCall3 runs C on the thread's system stack, through the assembly here or through Go's own switch.
func systemCall3(fn, a, b, c uintptr) int32 {
	if direct {
		f := Bound{fn, a}
		return CallDirect(&f, b, c)
	}
	return asmcgocall3(fn, a, b, c)
}

// The offsets in the runtime's records that the assembly uses. They are verified at every start.
const (
	gM       = 48 // g.m, the goroutine's thread
	mG0      = 0  // m.g0, whose stack is the system stack
	gSchedSP = 56 // g.sched.sp: on g0, the end of the stack that Go has used
	// If g.throwsplit is set, Go does not touch the goroutine's stack. A signal that C raises then ends the process at
	// once, with a message. Otherwise Go would run a panic on C's stack, which may have no space for it.
	gThrowsplit = 183
)

// direct is true if calls switch stacks and leave g unchanged, which costs half as much as Go's own switch. Go's switch
// is used if the offsets above are wrong.
//
// A crash or SIGQUIT during such a call prints Go's traceback without registers and then a second error, because Go
// prints the words around SP, which it mistakes for the goroutine's stack. GOVERBS_FULL_TRACEBACK=1 selects Go's own
// switch for debugging.
var direct = os.Getenv("GOVERBS_FULL_TRACEBACK") == "" && stacksAreKnown() && throwsplitIsKnown()

// stacksAreKnown compares the computed end of the system stack with the SP of C under Go's own switch, which is a few
// words lower.
func stacksAreKnown() bool {
	var seen uintptr
	computed := systemStacks(&seen)
	return computed-seen < 64
}

// throwsplitIsKnown checks the byte: Go sets it exactly while a goroutine is in a blocking call.
func throwsplitIsKnown() bool {
	see := func(call func(fn, a, b, c uintptr) int32) int32 {
		return call(thunkByte, currentG()+gThrowsplit, 0, 0)
	}
	return see(asmcgocall3) == 0 && see(blockingCall3) == 1 && see(asmcgocall3) == 0
}

// run makes the call of a frame. The frame is on the heap, because C may call back into Go, which may move the
// goroutine's stack.
func (f *frame) run() {
	cgocall(*(*unsafe.Pointer)(unsafe.Pointer(&thunkFrame)), unsafe.Pointer(f))
}
