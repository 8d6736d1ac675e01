//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow

package runtime

import (
	"sync"
	"unsafe"
)

// fast: this release of Go was tested with the links below. They reach into Go's own runtime, so a new minor release has to
// be tested before it is named in the build tag of this file and of the assembly.
const fast = true

//go:noescape
func currentG() uintptr

//go:noescape
func stackCall3(s *Stack, fn, a, b, c uintptr) (result int64)

//go:noescape
func stackInvoke(s *Stack, thunk uintptr, argument unsafe.Pointer) (result int64)

//go:noescape
func systemCall3(fn, a, b, c uintptr) (result int32)

//go:noescape
func systemInvoke(thunk uintptr, argument unsafe.Pointer) (result int32)

func thunks() (call3, callFrame, runSteps uintptr)

// cgocall runs thunk(argument) on the system stack, after telling the scheduler. It is what cgo and purego use.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(thunk, argument unsafe.Pointer) int32

var thunk3, thunkFrame, thunkSteps = thunks()

// call3 is the arguments of thunk3, in its order.
type call3 struct{ fn, a, b, c uintptr }

// blockingCall3 keeps its arguments on the goroutine's stack, as cgo does: nothing moves it while C runs, since these
// functions do not call back into Go.
func blockingCall3(fn, a, b, c uintptr) int32 {
	args := call3{fn, a, b, c}
	return cgocall(*(*unsafe.Pointer)(unsafe.Pointer(&thunk3)), unsafe.Pointer(&args))
}

func blockingSteps(first *step) int32 {
	return cgocall(*(*unsafe.Pointer)(unsafe.Pointer(&thunkSteps)), unsafe.Pointer(first))
}

func systemSteps(first *step) int32 {
	return systemInvoke(thunkSteps, unsafe.Pointer(first))
}

func stackSteps(s *Stack, first *step) int64 {
	return stackInvoke(s, thunkSteps, unsafe.Pointer(first))
}

// goMark is how far into a goroutine's own record stands the byte that says that its stack must not be touched: a signal that
// C raised is then fatal at once, with a message, where Go would otherwise run a panic on the private stack, which may have no
// room for it. 0 when the byte is not where it was in the releases that were tested.
var goMark = sync.OnceValue(func() uintptr {
	const offset = 183 // g.throwsplit
	// Go sets it while a goroutine is in a blocking call, and only then
	see := func(run func(*step) int32) byte {
		var p Program
		markSeen = 0xff
		p.Copy(uintptr(unsafe.Pointer(&markSeen)), currentG()+offset, 1)
		run(p.first())
		return markSeen
	}
	if see(systemSteps) == 0 && see(blockingSteps) == 1 && see(systemSteps) == 0 {
		return offset
	}
	return 0
})

var markSeen byte // a variable of the package: its address stays

// run makes the call of a frame that lies on the heap: C may call back into Go, which may move the goroutine's stack.
func (f *frame) run() {
	cgocall(*(*unsafe.Pointer)(unsafe.Pointer(&thunkFrame)), unsafe.Pointer(f))
}
