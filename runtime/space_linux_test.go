// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/program"
)

// toy is a backend with one object. It records the arguments of its calls.
type toy struct {
	space *runtime.Space
	calls map[string][]uint64
}

func (b *toy) Function(library, name string) runtime.Func {
	if library != "calls" || name == "weigh8" {
		return nil
	}
	return func(args []uint64) (uint64, runtime.Errno) {
		b.calls[name] = args
		return ^uint64(0), syscall.EBUSY
	}
}

func newToy(t *testing.T) *toy {
	b := &toy{calls: map[string][]uint64{}}
	var err error
	b.space, err = runtime.NewSpace(b)
	require.NoError(t, err)
	return b
}

func TestSpaceSlotOnEveryWay(t *testing.T) {
	b := newToy(t)
	var got []uint64
	slot, err := b.space.Slot(func(a, b, c, d, e, f uint64) (uint64, runtime.Errno) {
		got = []uint64{a, b, c, d, e, f}
		return ^uint64(4), syscall.ENOENT
	})
	require.NoError(t, err)
	for _, c := range callers() {
		got = nil
		assert.EqualValues(t, -5, c.call(slot, 1, 2, 3), c.name)
		assert.Equal(t, []uint64{1, 2, 3, 0, 0, 0}, got, c.name)
	}
	got = nil
	err = function("alloc").Slot(slot).Errno(1, 2, 3, 4, 5, 6)
	assert.ErrorIs(t, err, syscall.Errno(5))
	assert.Equal(t, []uint64{1, 2, 3, 4, 5, 6}, got)

	var p program.Program
	p.Call(cfunc(t, "weigh0"))
	p.Call(slot)
	assert.Panics(t, func() { p.Run(runtime.System) }, "C's functions and Go's in one program")
	for _, wrong := range []uintptr{slot + 1, slot + 16} {
		assert.Panics(t, func() { runtime.System.Call3(wrong, 0, 0, 0) })
	}
}

func TestAnObjectOfASpaceDecides(t *testing.T) {
	b := newToy(t)
	object, err := b.space.Alloc(100)
	require.NoError(t, err)
	at := uintptr(object)
	f := &runtime.Function{Library: calls, Name: "weigh2", Pointers: 0b10}
	_, err = f.Exported().MinusOne(7, at)
	require.ErrorIs(t, err, syscall.EBUSY)
	assert.EqualError(t, err, "weigh2: device or resource busy")
	assert.Equal(t, []uint64{7, uint64(at)}, b.calls["weigh2"])

	got, err := f.Exported().Value(at, 7)
	require.NoError(t, err)
	assert.EqualValues(t, weigh(at, 7), got, "the first argument of this function is not an address")

	_, err = f.From(b).MinusOne(1, 2)
	require.ErrorIs(t, err, syscall.EBUSY)
	got, err = f.From(nil).Value(1, 2)
	require.NoError(t, err)
	assert.EqualValues(t, weigh(1, 2), got)

	lacks := &runtime.Function{Library: calls, Name: "weigh8", Pointers: 1}
	err = lacks.Exported().Errno(at)
	assert.ErrorIs(t, err, runtime.ErrNotSupported)
	assert.EqualError(t, err, "weigh8: the software device does not have it")

	assert.Same(t, b, runtime.BackendOf(at))
	assert.Nil(t, runtime.BackendOf(cfunc(t, "weigh0")))
	for _, address := range []uintptr{0, 1, ^uintptr(0), 1 << 63, at + 1<<36, uintptr(unsafe.Pointer(b))} {
		assert.Nil(t, runtime.BackendOf(address), "%#x", address)
		_, err := (&runtime.Function{Library: calls, Name: "weigh1", Pointers: 1}).Exported().Value(address)
		assert.NoError(t, err)
	}
}

func TestMemoryOfASpace(t *testing.T) {
	b := newToy(t)
	used := map[unsafe.Pointer][]byte{}
	for round := range 3 {
		for _, size := range []int{0, 1, 64, 65, 4096, 3 << 20} {
			p, err := b.space.Alloc(size)
			require.NoError(t, err)
			assert.Zero(t, uintptr(p)%64)
			memory := unsafe.Slice((*byte)(p), size)
			for i := range memory {
				if memory[i] != 0 {
					t.Fatalf("round %d: %d bytes: byte %d is %#x", round, size, i, memory[i])
				}
				memory[i] = byte(size) | 1
			}
			assert.Nil(t, used[p], "allocated twice")
			used[p] = memory
			assert.Same(t, b, runtime.BackendOf(uintptr(p)))
		}
		for p, memory := range used {
			for _, x := range memory {
				if x != byte(len(memory))|1 {
					t.Fatal("memory is shared")
				}
			}
			if round < 2 {
				b.space.Free(p)
				assert.Panics(t, func() { b.space.Free(p) }, "freed twice")
				delete(used, p)
			}
		}
	}
	_, err := b.space.Alloc(1 << 40)
	assert.ErrorContains(t, err, "has used up its")
	_, err = b.space.Alloc(int(^uint(0) >> 1))
	assert.Error(t, err)
}

func TestASpaceServesManyGoroutines(t *testing.T) {
	fn := cfunc(t, "int3")
	var wg sync.WaitGroup
	for g := range uintptr(4) {
		wg.Go(func() {
			for range 200 { // C is called while the first Space is created
				assert.EqualValues(t, 321, runtime.System.Call3(fn, 1, 2, 3))
			}
			b := newToy(t)
			for i := range uintptr(100) {
				slot, err := b.space.Slot(func(a, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
					return a +
						uint64(1000*g+i), 0
				})
				assert.NoError(t, err)
				assert.EqualValues(t, 5+1000*g+i, runtime.System.Call3(slot, 5, 0, 0))
				p, err := b.space.Alloc(64)
				assert.NoError(t, err)
				b.space.Free(p)
			}
		})
	}
	wg.Wait()
}
