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

func newStack(t testing.TB) *runtime.Stack {
	t.Helper()
	s, err := runtime.NewStack()
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// caller is one way to make a call of three arguments.
type caller struct {
	name string
	call func(fn, a, b, c uintptr) int32
}

func callers(t testing.TB) []caller {
	s := newStack(t)
	all := []caller{{"stack", func(fn, a, b, c uintptr) int32 {
		defer s.Release() // the next test is another goroutine
		return s.Call3(fn, a, b, c)
	}}}
	for _, w := range []runtime.Way{runtime.Blocking, runtime.System, runtime.Exclusive} {
		all = append(all, caller{w.String(), w.Call3})
		all = append(all, caller{"program, " + w.String(), func(fn, a, b, c uintptr) int32 {
			var p program.Program
			p.Call(fn, uint64(a), uint64(b), uint64(c))
			return p.Run(w)
		}})
	}
	return append(all, caller{"program, stack", func(fn, a, b, c uintptr) int32 {
		var p program.Program
		p.Call(fn, uint64(a), uint64(b), uint64(c))
		defer s.Release()
		return p.RunOn(s)
	}})
}

func TestCall3(t *testing.T) {
	int3, dirty, busy, aligned, deep := cfunc(t, "int3"), cfunc(t, "dirty"), cfunc(t, "busy"), cfunc(t, "aligned"),
		cfunc(t, "deep")
	for _, c := range callers(t) {
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
			assert.EqualValues(t, 32<<10/512, c.call(deep, 32<<10, 0, 0), "half of a private stack")
		})
	}
}

func TestCall3AllocatesNothing(t *testing.T) {
	fn := cfunc(t, "int3")
	s := newStack(t)
	var p program.Program
	call := p.Call(fn, 1, 2, 3)
	cases := map[string]func(){
		"stack":          func() { s.Call3(fn, 1, 2, 3) },
		"program, stack": func() { p.SetArg(call, 0, 4); p.RunOn(s) },
	}
	for _, w := range []runtime.Way{runtime.Blocking, runtime.System, runtime.Exclusive} {
		cases[w.String()] = func() { w.Call3(fn, 1, 2, 3) }
		cases["program, "+w.String()] = func() { p.Run(w) }
	}
	for name, f := range cases {
		want := 0.0
		if !runtime.Fast {
			want = 1 // of purego
		}
		assert.LessOrEqual(t, testing.AllocsPerRun(1000, f), want, name)
	}
}

func TestABlockingCallLetsGoGoOn(t *testing.T) {
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
		assert.False(t, over.Load(), "%s: the world stood still while C slept", name)
		defer func() { <-done }()
	}
}

// elsewhere runs f in another goroutine and gives what it panicked with.
func elsewhere(f func()) (panicked any) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		f()
	}()
	return <-done
}

func TestAStackHasOneOwner(t *testing.T) {
	fn := cfunc(t, "int3")
	s := newStack(t)
	var p program.Program
	p.Call(fn, 1, 2, 3)
	use := func() { s.Call3(fn, 1, 2, 3) }
	run := func() { p.RunOn(s) }
	use()
	if !runtime.PrivateStacks() {
		t.Log("there are no private stacks here: any goroutine may call")
		assert.Nil(t, elsewhere(use))
		assert.Nil(t, elsewhere(run))
		assert.Nil(t, elsewhere(s.Own))
		return
	}
	for range 3 {
		assert.Equal(t, runtime.ErrNotOwner, elsewhere(use))
		assert.Equal(t, runtime.ErrNotOwner, elsewhere(run))
		assert.Equal(t, runtime.ErrNotOwner, elsewhere(s.Own))
		assert.Equal(t, runtime.ErrNotOwner, elsewhere(func() { s.Release(); use() }),
			"another goroutine cannot release it")
		use()
		run()
	}
	s.Release()
	assert.Nil(t, elsewhere(func() { run(); use(); s.Release() }))
	use()
	assert.Equal(t, runtime.ErrNotOwner, elsewhere(use))
}

func TestAClosedStack(t *testing.T) {
	fn := cfunc(t, "int3")
	s := newStack(t)
	s.Call3(fn, 1, 2, 3)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	var p program.Program
	p.Call(fn, 1, 2, 3)
	assert.PanicsWithValue(t, runtime.ErrClosed, func() { s.Call3(fn, 1, 2, 3) })
	assert.PanicsWithValue(t, runtime.ErrClosed, func() { p.RunOn(s) })
	assert.PanicsWithValue(t, runtime.ErrClosed, s.Own)
}

func TestManyStacks(t *testing.T) {
	fn := cfunc(t, "deep")
	var all []*runtime.Stack
	for range 200 {
		all = append(all, newStack(t))
	}
	for _, s := range all {
		assert.EqualValues(t, 48<<10/512, s.Call3(fn, 48<<10, 0, 0))
	}
}

// TestAFaultInC: the process ends, says which signal it was and where, and runs no deferred function.
func TestAFaultInC(t *testing.T) {
	if childOf != "" {
		fault(t, childOf)
		t.Fatal("still there")
	}
	cases := []string{"function"}
	for _, c := range callers(t) {
		cases = append(cases, c.name)
	}
	if runtime.PrivateStacks() {
		cases = append(cases, "overflow", "overflow by a program")
	}
	for _, name := range cases {
		out, err := child(t, "TestAFaultInC", name)
		require.Error(t, err, name)
		assert.Regexp(t, `(?m)^SIGSEGV: segmentation violation\nPC=0x[0-9a-f]+ m=\d+ sigcode=\d+`, out, name)
		assert.NotContains(t, out, "recovered", name)
		assert.NotContains(t, out, "still there", name)
	}
}

func fault(t *testing.T, what string) {
	defer func() {
		if r := recover(); r != nil {
			t.Fatal("recovered", r)
		}
	}()
	fn := cfunc(t, "dereference")
	switch what {
	case "function":
		function("dereference").Exported().Value(8)
	case "overflow":
		newStack(t).Call3(cfunc(t, "deep"), 1<<20, 0, 0)
	case "overflow by a program":
		var p program.Program
		p.Call(cfunc(t, "deep"), 1<<20)
		p.RunOn(newStack(t))
	}
	for _, c := range callers(t) {
		if c.name == what {
			c.call(fn, 8, 0, 0)
		}
	}
}
