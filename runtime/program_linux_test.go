// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
	"github.com/goverbs/goverbs/runtime/program"
)

func mapped(t testing.TB, size int) *offheap.Mapping {
	t.Helper()
	m, err := offheap.Map(size, offheap.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// runners returns the ways to run a program of C functions.
func runners() map[string]func(*program.Program) int32 {
	all := map[string]func(*program.Program) int32{}
	for _, w := range []runtime.Way{runtime.Blocking, runtime.System} {
		all[w.String()] = func(p *program.Program) int32 { return p.Run(w) }
	}
	return all
}

func TestStepsOfAProgram(t *testing.T) {
	memory := mapped(t, 4096)
	at, words := memory.Address(), unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(memory.Bytes()))), 8)
	const old = 0xaaaaaaaaaaaaaaaa
	for name, run := range runners() {
		t.Run(name, func(t *testing.T) {
			var p program.Program
			assert.Zero(t, run(&p), "an empty program")

			call := p.Call(cfunc(t, "weigh6"), 1, 2, 3, 4, 5, 6)
			p.StoreResult(at, 8)
			for i, width := range []int{1, 2, 4, 8} {
				p.Store(at+8+8*uintptr(i), width, 0x1122334455667788)
			}
			want := weigh(1, 2, 3, 4, 5, 6)
			for i := range words {
				words[i] = old
			}
			assert.Equal(t, int32(want), run(&p))
			assert.Equal(t, []uint64{uint64(want), 0xaaaaaaaaaaaaaa88, 0xaaaaaaaaaaaa7788, 0xaaaaaaaa55667788,
				0x1122334455667788, old, old, old}, slices.Clone(words), "as in a little-endian memory")
			p.SetArg(call, 5, 7)
			assert.Equal(t, int32(weigh(1, 2, 3, 4, 5, 7)), run(&p))

			p.Reset()
			for i, width := range []int{1, 2, 4, 8} {
				p.Copy(at+8*uintptr(i), at+56, width)
			}
			for i := range words {
				words[i] = old
			}
			words[7] = 0x1122334455667788
			assert.Zero(t, run(&p))
			assert.Equal(t, []uint64{0xaaaaaaaaaaaaaa88, 0xaaaaaaaaaaaa7788, 0xaaaaaaaa55667788, 0x1122334455667788},
				slices.Clone(words[:4]))
		})
	}
}

func TestJumpsOfAProgram(t *testing.T) {
	memory := mapped(t, 4096)
	at, words := memory.Address(), unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(memory.Bytes()))), 2)
	for name, run := range runners() {
		t.Run(name, func(t *testing.T) {
			var p program.Program
			call := p.Call(cfunc(t, "dirty"), 0) // 0 as an int, not as a register
			onResult := p.JumpIfResult()
			p.Store(at, 4, 1)
			p.Target(onResult)
			onMemory := p.JumpIfMemory(at + 8)
			p.Store(at, 4, 2)
			p.Target(onMemory) // after the last step
			for _, c := range []struct{ result, memory, want uint64 }{{0, 0, 2}, {0, 1, 1}, {1, 0, 2},
				{1, 0xffffffff, 9}, {1 << 31, 1 << 32, 2}} {
				p.SetArg(call, 0, c.result)
				words[0], words[1] = 9, c.memory
				assert.Equal(t, int32(c.result), run(&p))
				assert.Equal(t, c.want, words[0], "%+v", c)
			}
			p.SetAddress(onMemory, at)
			p.SetArg(call, 0, 1)
			words[0], words[1] = 5, 0
			run(&p)
			assert.EqualValues(t, 5, words[0])
		})
	}
}

func TestInvalidPrograms(t *testing.T) {
	var p program.Program
	jump := p.JumpIfResult()
	assert.Equal(t, 1, p.Len())
	assert.Panics(t, func() { p.Run(runtime.System) }, "a jump without a target")
	p.Target(jump)
	assert.NotPanics(t, func() { p.Run(runtime.System) })
	call := p.Call(cfunc(t, "weigh0"))
	assert.Panics(t, func() { p.Target(call) })
	assert.Panics(t, func() { p.SetAddress(call, 1) })
	assert.Panics(t, func() { p.Store(0, 3, 0) })
	assert.Panics(t, func() { p.Call(1, make([]uint64, program.MaxArgs+1)...) })
}

func TestALongProgram(t *testing.T) {
	memory := mapped(t, 4096)
	var p program.Program
	jump := p.JumpIfMemory(memory.Address())
	for p.Len() < 1<<16-2 {
		p.Call(cfunc(t, "weigh0"))
	}
	p.Target(jump)
	p.Call(cfunc(t, "int3"), 7)
	assert.Equal(t, 1<<16-1, p.Len())
	assert.Panics(t, func() { p.Call(cfunc(t, "weigh0")) })
	memory.Bytes()[0] = 1
	for name, run := range runners() {
		assert.EqualValues(t, 7, run(&p), name)
	}
}

// noFunctions is a backend with slots only.
type noFunctions struct{}

func (noFunctions) Function(_, _ string) runtime.Func { return nil }

// TestProgramsMatchModel checks that a random program has the same effect as its steps executed one by one.
func TestProgramsMatchModel(t *testing.T) {
	const words = 16
	memory := mapped(t, 4096)
	at, real := memory.Address(), memory.Bytes()[:8*words]
	_, err := runtime.NewSpace(nil)
	assert.Error(t, err)
	space, err := runtime.NewSpace(noFunctions{})
	require.NoError(t, err)
	mix := func(a, b, c, d, e, f uint64) uint64 {
		return uint64(weigh(uintptr(a), uintptr(b), uintptr(c), uintptr(d), uintptr(e), uintptr(f)))
	}
	slot, err := space.Slot(func(a, b, c, d, e, f uint64) (uint64, runtime.Errno) { return mix(a, b, c, d, e, f), 0 })
	require.NoError(t, err)
	all := runners()
	fns := map[string]uintptr{"software": slot}
	all["software"] = func(p *program.Program) int32 { return p.Run(runtime.System) }
	for name := range all {
		if name != "software" {
			fns[name] = cfunc(t, "weigh6")
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SliceOfN(rapid.Byte(), len(real), len(real)).Draw(t, "memory")
		for i := range 4 { // so that jumps on memory are not always taken
			clear(start[16*i : 16*i+8])
		}
		programs := map[string]*program.Program{}
		for name := range all {
			programs[name] = &program.Program{}
		}
		each := func(add func(p *program.Program, fn uintptr) program.Step) (s program.Step) {
			for name, p := range programs {
				s = add(p, fns[name])
			}
			return s
		}
		// model executes the steps; a jump skips those before its target
		type effect struct {
			do   func(m []byte, result *uint64) (jump bool)
			jump bool
			to   int
		}
		var model []effect
		steps := rapid.IntRange(0, 24).Draw(t, "steps")
		var open []int
		settle := func(i int) {
			each(func(p *program.Program, _ uintptr) program.Step { p.Target(program.Step(i)); return 0 })
			model[i].to = len(model)
		}
		for range steps {
			width := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "width")
			to := rapid.IntRange(0, len(real)-8).Draw(t, "to")
			from := rapid.IntRange(0, len(real)-8).Draw(t, "from")
			value := rapid.Uint64().Draw(t, "value")
			put := func(m []byte, v uint64) {
				for i := range width {
					m[to+i] = byte(v >> (8 * i))
				}
			}
			get := func(m []byte, at, width int) (v uint64) {
				for i := range width {
					v |= uint64(m[at+i]) << (8 * i)
				}
				return v
			}
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				args := rapid.SliceOfN(rapid.Uint64(), 6, 6).Draw(t, "args")
				if rapid.Bool().Draw(t, "result 0") { // the weight of the last argument is 1
					args[5] -= mix(args[0], args[1], args[2], args[3], args[4], args[5]) & (1<<32 - 1)
				}
				s := each(func(p *program.Program, fn uintptr) program.Step {
					return p.Call(fn, 0, args[1], args[2], args[3], args[4])
				})
				each(func(p *program.Program, _ uintptr) program.Step {
					p.SetArg(s, 0, args[0])
					p.SetArg(s, 5, args[5])
					return s
				})
				model = append(model, effect{do: func(_ []byte, r *uint64) bool {
					*r = mix(args[0], args[1], args[2], args[3], args[4], args[5])
					return false
				}})
			case 1:
				each(func(p *program.Program, _ uintptr) program.Step { return p.Store(at+uintptr(to), width, value) })
				model = append(model, effect{do: func(m []byte, _ *uint64) bool { put(m, value); return false }})
			case 2:
				each(func(p *program.Program, _ uintptr) program.Step { return p.StoreResult(at+uintptr(to), width) })
				model = append(model, effect{do: func(m []byte, r *uint64) bool { put(m, *r); return false }})
			case 3:
				each(func(p *program.Program, _ uintptr) program.Step {
					return p.Copy(at+uintptr(to), at+uintptr(from), width)
				})
				model = append(model,
					effect{do: func(m []byte, _ *uint64) bool { put(m, get(m, from, width)); return false }})
			case 4:
				each(func(p *program.Program, _ uintptr) program.Step { return p.JumpIfResult() })
				model = append(model, effect{jump: true, do: func(_ []byte, r *uint64) bool { return uint32(*r) != 0 }})
				open = append(open, len(model)-1)
			case 5:
				from -= from % 8
				each(func(p *program.Program, _ uintptr) program.Step { return p.JumpIfMemory(at + uintptr(from)) })
				model = append(model,
					effect{jump: true, do: func(m []byte, _ *uint64) bool { return uint32(get(m, from, 4)) != 0 }})
				open = append(open, len(model)-1)
			}
			if len(open) > 0 && rapid.Bool().Draw(t, "target here") {
				settle(open[len(open)-1])
				open = open[:len(open)-1]
			}
		}
		for _, i := range open {
			settle(i)
		}
		want, result := slices.Clone(start), uint64(0)
		for i := 0; i < len(model); {
			if model[i].do(want, &result) && model[i].jump {
				i = model[i].to
			} else {
				i++
			}
		}
		for name, run := range all {
			copy(real, start)
			got := run(programs[name])
			if got != int32(result) || !slices.Equal(real, want) {
				t.Fatalf("%s: result %#x, want %#x\nmemory %s\nwant   %s", name, uint32(got), uint32(result), hex(real),
					hex(want))
			}
		}
	})
}

func hex(b []byte) (s string) {
	for i := 0; i < len(b); i += 8 {
		s += fmt.Sprintf(" %016x", bits.ReverseBytes64(*(*uint64)(unsafe.Pointer(&b[i]))))
	}
	return s
}
