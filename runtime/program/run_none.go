// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || android || !(amd64 || arm64 || loong64 || ppc64le || riscv64) || goverbs_static

package program

import "github.com/goverbs/goverbs/runtime"

// run executes the steps in Go. Without C, a call panics.
func run(w runtime.Way, first *step) int32 {
	return interpret(first, func(fn uintptr, _ *[MaxArgs]uint64) uint64 { return uint64(w.Call3(fn, 0, 0, 0)) })
}

// thunkAddress returns 0: Direct is false in this build.
func thunkAddress() uintptr { return 0 }
