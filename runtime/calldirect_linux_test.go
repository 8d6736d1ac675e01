// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// TestCallDirect checks that every argument of weigh3(a, b, c) affects the result, and that Go memory that is passed to
// C is not on a goroutine's stack, which may move.
func TestCallDirect(t *testing.T) {
	if runtime.Fast && !runtime.Direct() {
		t.Skip("GOVERBS_FULL_TRACEBACK is set: direct calls are disabled")
	}
	fn := cfunc(t, "weigh3")
	f := &runtime.Bound{Fn: fn, Object: 7}
	assert.Equal(t, int32(weigh(7, 100, 9)), runtime.CallDirect(f, 100, 9))
	var onStack [4]uint64
	at := uintptr(unsafe.Pointer(&onStack[0]))
	assert.Equal(t, int32(weigh(7, 4, at)), runtime.CallDirect(f, 4, uintptr(unsafe.Pointer(&onStack[0]))))
	if !runtime.Fast { // programs do not run directly, and every call allocates
		return
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() { runtime.CallDirect(f, 2, 3) }))
	var p program.Program
	p.Call(fn, 1, 2, 3)
	assert.Equal(t, p.Run(runtime.System), p.RunDirect())
}
