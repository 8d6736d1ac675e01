//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow

package runtime

import (
	"os"
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
func postExclusive(p *Poster, c *Chain) (err error)

//go:noescape
func postShared(p *Poster, c *Chain) (err error)

// The completions that C writes must not be on a goroutine's stack, so these let them escape.

func pollExclusive(p *Poller, n int, wcs unsafe.Pointer) (found int)

func pollShared(p *Poller, n int, wcs unsafe.Pointer) (found int)

//go:noescape
func directCall3(fn, a, b, c uintptr) (result int32)

//go:noescape
func directInvoke(thunk uintptr, argument unsafe.Pointer) (result int32)

//go:noescape
func asmcgocall3(fn, a, b, c uintptr) (result int32)

//go:noescape
func asmcgoInvoke(thunk uintptr, argument unsafe.Pointer) (result int32)

//go:noescape
func systemStacks(seen *uintptr) (computed uintptr)

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

// systemCall3 runs C on the thread's system stack, by the assembly here or by Go's own switch.
func systemCall3(fn, a, b, c uintptr) int32 {
	if direct {
		return directCall3(fn, a, b, c)
	}
	return asmcgocall3(fn, a, b, c)
}

func systemSteps(first *step) int32 {
	if direct {
		return directInvoke(thunkSteps, unsafe.Pointer(first))
	}
	return asmcgoInvoke(thunkSteps, unsafe.Pointer(first))
}

func stackSteps(s *Stack, first *step) int64 {
	return stackInvoke(s, thunkSteps, unsafe.Pointer(first))
}

// What the assembly knows of Go's own records. The tests below say at every start whether it is still so.
const (
	gM       = 48 // g.m, the goroutine's thread
	mG0      = 0  // m.g0, whose stack is the system stack
	gSchedSP = 56 // g.sched.sp: of g0, how far Go has used it
	// g.throwsplit says that the goroutine's stack must not be touched: a signal that C raises is then fatal at once, with a
	// message, where Go would otherwise run a panic on a stack that is not Go's and may have no room for it.
	gThrowsplit = 183
)

// direct: C may be called on another stack with g unchanged. It costs half of Go's own switch, which is used when what the
// assembly knows is not so.
//
// A crash, or SIGQUIT, while C runs so gives Go's traceback without registers, and with a second error behind it: Go prints the
// words around SP, which it takes to lie on the goroutine's stack. GOVERBS_FULL_TRACEBACK=1 calls by Go's own switch, for debugging.
var direct = os.Getenv("GOVERBS_FULL_TRACEBACK") == "" && stacksAreKnown() && throwsplitIsKnown()

// stacksAreKnown compares the end of the system stack as computed with where Go's own switch puts C: a few words below.
func stacksAreKnown() bool {
	var seen uintptr
	computed := systemStacks(&seen)
	return computed-seen < 64
}

// throwsplitIsKnown looks at the byte: Go sets it while a goroutine is in a blocking call, and only then.
func throwsplitIsKnown() bool {
	see := func(run func(*step) int32) byte {
		var p Program
		throwsplitSeen = 0xff
		p.Copy(uintptr(unsafe.Pointer(&throwsplitSeen)), currentG()+gThrowsplit, 1)
		run(p.first())
		return throwsplitSeen
	}
	system := func(first *step) int32 { return asmcgoInvoke(thunkSteps, unsafe.Pointer(first)) }
	return see(system) == 0 && see(blockingSteps) == 1 && see(system) == 0
}

var throwsplitSeen byte // a variable of the package: its address stays

// run makes the call of a frame that lies on the heap: C may call back into Go, which may move the goroutine's stack.
func (f *frame) run() {
	cgocall(*(*unsafe.Pointer)(unsafe.Pointer(&thunkFrame)), unsafe.Pointer(f))
}
