// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64 || loong64 || ppc64le || riscv64) && !goverbs_static && (goverbs_slow || !(amd64 || arm64) || !go1.26 || go1.27)

package program

import (
	goruntime "runtime"

	"github.com/ebitengine/purego"

	"github.com/goverbs/goverbs/runtime"
)

// run makes a separate call for each step. Other goroutines may run in between. One that waits in C for a lock of this
// goroutine has released its P, so Go makes progress. The thread stays the same, for locks that have an owner.
func run(_ runtime.Way, first *step) int32 {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	return interpret(first, call)
}

func call(fn uintptr, a *[MaxArgs]uint64) uint64 {
	result, _, _ := purego.SyscallN(fn, uintptr(a[0]), uintptr(a[1]), uintptr(a[2]), uintptr(a[3]), uintptr(a[4]),
		uintptr(a[5]))
	return uint64(result)
}

// thunkAddress returns 0: Direct is false in this build.
func thunkAddress() uintptr { return 0 }
