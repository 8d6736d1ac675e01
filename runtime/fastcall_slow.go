// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64 || loong64 || ppc64le || riscv64) && !goverbs_static && (goverbs_slow || !(amd64 || arm64) || !go1.26 || go1.27)

package runtime

import (
	goruntime "runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// fast is false: every call goes through purego, which notifies the scheduler.
const (
	fast   = false
	direct = false
)

// CallDirect is a Blocking call in this build.
//
//go:uintptrescapes
func CallDirect(f *Bound, b, c uintptr) int32 { return blockingCall3(f.Fn, f.Object, b, c) }

func systemCall3(fn, a, b, c uintptr) int32 { return blockingCall3(fn, a, b, c) }

func blockingCall3(fn, a, b, c uintptr) int32 {
	result, _, _ := purego.SyscallN(fn, a, b, c)
	return int32(result)
}

// run makes the call of a frame. errno belongs to the thread, and Go's own system calls do not touch C's errno. On a
// locked thread it is therefore still valid for the second call.
func (f *frame) run() {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if f.errnoLocation != 0 {
		*errnoAt(f.errnoLocation) = 0
	}
	f.result, _, _ = purego.SyscallN(f.fn, f.args[:]...)
	f.errno = 0
	if f.errnoLocation != 0 {
		f.errno = uintptr(*errnoAt(f.errnoLocation))
	}
}

// errnoAt returns the address of this thread's errno in the C library.
func errnoAt(location uintptr) *int32 {
	p, _, _ := purego.SyscallN(location)
	return *(**int32)(unsafe.Pointer(&p))
}
