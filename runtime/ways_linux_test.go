// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// caller is one way to make a call with three arguments.
type caller struct {
	name string
	call func(fn, a, b, c uintptr) int32
}

func callers() (all []caller) {
	for _, w := range []runtime.Way{runtime.Blocking, runtime.System} {
		all = append(all, caller{w.String(), w.Call3})
		all = append(all, caller{"program, " + w.String(), func(fn, a, b, c uintptr) int32 {
			var p program.Program
			p.Call(fn, uint64(a), uint64(b), uint64(c))
			return p.Run(w)
		}})
	}
	return all
}

func TestCall3(t *testing.T) {
	int3, dirty, busy, aligned, deep := cfunc(t, "int3"), cfunc(t, "dirty"), cfunc(t, "busy"), cfunc(t, "aligned"),
		cfunc(t, "deep")
	for _, c := range callers() {
		t.Run(c.name, func(t *testing.T) {
			assert.EqualValues(t, 321, c.call(int3, 1, 2, 3))
			assert.EqualValues(t, -1, c.call(int3, arg(-1), 0, 0))
			assert.EqualValues(t, 7, c.call(dirty, 7, 0, 0))
			x, y := 1.5, 2.5
			c.call(busy, 1, 2, 3)
			assert.Equal(t, 4.0, x+y, "vector registers")
			if goruntime.GOARCH != "riscv64" { // purego 0.11.3 calls with a stack aligned to 8 there
				assert.Zero(t, c.call(aligned, 0, 0, 0), "the stack is aligned to 16")
			}
			assert.EqualValues(t, 4<<10/512, c.call(deep, 4<<10, 0, 0), "more than any provider needs")
		})
	}
}

func TestCall3DoesNotAllocate(t *testing.T) {
	fn := cfunc(t, "int3")
	var p program.Program
	call := p.Call(fn, 1, 2, 3)
	cases := map[string]func(){}
	for _, w := range []runtime.Way{runtime.Blocking, runtime.System} {
		cases[w.String()] = func() { w.Call3(fn, 1, 2, 3) }
		cases["program, "+w.String()] = func() { p.SetArg(call, 0, 4); p.Run(w) }
	}
	for name, f := range cases {
		want := 0.0
		if !runtime.Fast {
			want = 1 // of purego
		}
		assert.LessOrEqual(t, testing.AllocsPerRun(1000, f), want, name)
	}
}

func TestBlockingCallDoesNotStopGo(t *testing.T) {
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(1))
	nap := cfunc(t, "nap")
	const ms = 1000
	for name, call := range map[string]func(){
		"Call3":    func() { runtime.Blocking.Call3(nap, ms, 0, 0) },
		"Function": func() { function("nap").Exported().Errno(ms) },
		"Program":  func() { var p program.Program; p.Call(nap, ms); p.Run(runtime.Blocking) },
	} {
		var over atomic.Bool
		done := make(chan bool)
		go func() { call(); over.Store(true); done <- true }()
		time.Sleep(20 * time.Millisecond)
		for range 3 {
			goruntime.GC()
		}
		assert.False(t, over.Load(), "%s: Go was stopped while C slept", name)
		defer func() { <-done }()
	}
}

// TestAFaultInC checks that the process ends, reports the signal and its location, and runs no deferred function.
func TestAFaultInC(t *testing.T) {
	if childOf != "" {
		fault(t, childOf)
		t.Fatal("still there")
	}
	cases := []string{"function"}
	for _, c := range callers() {
		cases = append(cases, c.name)
	}
	for _, name := range cases {
		out, err := child(t, "TestAFaultInC", name)
		require.Error(t, err, name)
		assert.Regexp(t, `(?m)^SIGSEGV: segmentation violation\nPC=0x[0-9a-f]+ m=\d+ sigcode=\d+`, out, name)
		assert.NotContains(t, out, "recovered", name)
		assert.NotContains(t, out, "still there", name)
	}
}

func fault(t *testing.T, name string) {
	defer func() {
		if r := recover(); r != nil {
			t.Fatal("recovered", r)
		}
	}()
	fn := cfunc(t, "dereference")
	if name == "function" {
		function("dereference").Exported().Value(8)
	}
	for _, c := range callers() {
		if c.name == name {
			c.call(fn, 8, 0, 0)
		}
	}
}
