// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && !android && (amd64 || arm64) && go1.26 && !go1.27 && !goverbs_slow && !goverbs_static

package program

import (
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
)

// address returns the address of the assembly that runs steps. It is called like a C function, with the first step.
func address() uintptr

var thunk = address()

func run(w runtime.Way, first *step) int32 {
	result := w.Call3(thunk, uintptr(unsafe.Pointer(first)), 0, 0)
	goruntime.KeepAlive(first)
	return result
}

func thunkAddress() uintptr { return thunk }
