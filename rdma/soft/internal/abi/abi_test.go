// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// all is garbage in the register bits above an argument.
const all = 0xdead_beef_0000_0000

// TestArguments: an argument is the low bits of its register, with sign.
func TestArguments(t *testing.T) {
	var got []any
	f := Number(Take6(func(a int32, b uint32, c int8, d uint8, e uint16, f uint64) runtime.Errno {
		got = []any{a, b, c, d, e, f}
		return 0
	}))
	f(Args{all | 0xffff_fffe, all | 0xffff_fffe, all | 0x180, all | 0x101, all | 0x1_0002, all | 1})
	assert.Equal(t, []any{int32(-2), uint32(0xffff_fffe), int8(-128), uint8(1), uint16(2), uint64(all | 1)}, got)

	f(Args{math.MaxUint64, 0, 0x7f, 0, 0, 0}) // −1 as passed by Go
	assert.Equal(t, []any{int32(-1), uint32(0), int8(127), uint8(0), uint16(0), uint64(0)}, got)
}

// TestEveryArity: each argument comes from its own register.
func TestEveryArity(t *testing.T) {
	type u = uint64
	args := []uint64{1, 2, 3, 4, 5, 6}
	digits := func(of ...u) (n u) {
		for _, v := range of {
			n = 10*n + v
		}
		return n
	}
	type o struct{}
	object := func(a uint64) *o { return &o{} }
	var after u
	for i, f := range []runtime.Func{
		Func0(func() (u, runtime.Errno) { return 0, 0 }),
		Func1(func(a u) (u, runtime.Errno) { return digits(a), 0 }),
		Func2(func(a, b u) (u, runtime.Errno) { return digits(a, b), 0 }),
		Func3(func(a, b, c u) (u, runtime.Errno) { return digits(a, b, c), 0 }),
		Func4(func(a, b, c, d u) (u, runtime.Errno) { return digits(a, b, c, d), 0 }),
		Func5(func(a, b, c, d, e u) (u, runtime.Errno) { return digits(a, b, c, d, e), 0 }),
		Func6(func(a, b, c, d, e, f u) (u, runtime.Errno) { return digits(a, b, c, d, e, f), 0 }),
	} {
		got, _ := f(args)
		assert.Equal(t, digits(args[:i]...), got, "Func%d", i)
	}
	for i, f := range []runtime.Func{
		Result(Take1(func(a u) u { return digits(a) })),
		Result(Take2(func(a, b u) u { return digits(a, b) })),
		Result(Take3(func(a, b, c u) u { return digits(a, b, c) })),
		Result(Take4(func(a, b, c, d u) u { return digits(a, b, c, d) })),
		Result(Take5(func(a, b, c, d, e u) u { return digits(a, b, c, d, e) })),
		Result(Take6(func(a, b, c, d, e, f u) u { return digits(a, b, c, d, e, f) })),
	} {
		got, _ := f(args)
		assert.Equal(t, digits(args[:i+1]...), got, "Take%d", i+1)
	}
	for i, f := range []func(*o, Args) (u, runtime.Errno){
		New0(func(*o) (u, runtime.Errno) { return 0, 0 }),
		New1(func(_ *o, a u) (u, runtime.Errno) { return digits(a), 0 }),
		New2(func(_ *o, a, b u) (u, runtime.Errno) { return digits(a, b), 0 }),
		New3(func(_ *o, a, b, c u) (u, runtime.Errno) { return digits(a, b, c), 0 }),
		New4(func(_ *o, a, b, c, d u) (u, runtime.Errno) { return digits(a, b, c, d), 0 }),
		New5(func(_ *o, a, b, c, d, e u) (u, runtime.Errno) { return digits(a, b, c, d, e), 0 }),
	} {
		got, _ := f(&o{}, args)
		assert.Equal(t, digits(args[1:i+1]...), got, "New%d", i)
	}
	for i, f := range []func(*o, Args) runtime.Errno{
		After0(func(*o) runtime.Errno { after = 0; return 0 }),
		After1(func(_ *o, a u) runtime.Errno { after = digits(a); return 0 }),
		After2(func(_ *o, a, b u) runtime.Errno { after = digits(a, b); return 0 }),
		After3(func(_ *o, a, b, c u) runtime.Errno { after = digits(a, b, c); return 0 }),
		After4(func(_ *o, a, b, c, d u) runtime.Errno { after = digits(a, b, c, d); return 0 }),
		After5(func(_ *o, a, b, c, d, e u) runtime.Errno { after = digits(a, b, c, d, e); return 0 }),
	} {
		Status(Of(object, f))(args)
		assert.Equal(t, digits(args[1:i+1]...), after, "After%d", i)
	}
}

// TestPointers: an address is passed on unchanged and not dereferenced.
func TestPointers(t *testing.T) {
	f := Func1(func(p ibv.Ptr[uint64]) (ibv.Ptr[uint64], runtime.Errno) { return p, 0 })
	for _, address := range []uint64{0, 1, 4095, math.MaxUint32} {
		got, _ := f(Args{address})
		assert.Equal(t, address, got)
	}
	word := new(uint64)
	Number(Take1(func(p ibv.Ptr[uint64]) runtime.Errno { *p.Deref() = 7; return 0 }))(Args{uint64(ibv.PtrTo(word))})
	assert.EqualValues(t, 7, *word)
}

// TestResults checks how failures are encoded.
func TestResults(t *testing.T) {
	type answer struct {
		result uint64
		errno  runtime.Errno
	}
	of := func(f runtime.Func) answer {
		result, errno := f([]uint64{1})
		return answer{result, errno}
	}
	fails := func(Args) runtime.Errno { return syscall.EINVAL }
	works := func(Args) runtime.Errno { return 0 }
	assert.Equal(t, answer{uint64(syscall.EINVAL), 0}, of(Number(fails)))
	assert.Equal(t, answer{math.MaxUint64, syscall.EINVAL}, of(Status(fails)))
	assert.Equal(t, answer{0, syscall.EINVAL}, of(Void(fails)))
	for _, f := range []runtime.Func{Number(works), Status(works), Void(works)} {
		assert.Zero(t, of(f))
	}
	// Negative results are sign-extended, unsigned ones zero-extended.
	assert.Equal(t, answer{math.MaxUint64, 0}, of(Constant(int32(-1))))
	assert.Equal(t, answer{math.MaxUint32, 0}, of(Constant(uint32(math.MaxUint32))))
	assert.Equal(t, answer{math.MaxUint64 - uint64(syscall.EINVAL) + 1, 0},
		of(Result(func(Args) int64 { return -int64(syscall.EINVAL) })))
	assert.Equal(t, answer{math.MaxUint64 - 2, syscall.EIO},
		of(Func0(func() (int32, runtime.Errno) { return -3, syscall.EIO })))
}

// TestMissingObject: a function is not called without its object.
func TestMissingObject(t *testing.T) {
	object := new(int)
	find := func(address uint64) *int {
		if address == 5 {
			return object
		}
		return nil
	}
	calls := 0
	f := Of(find, After0(func(o *int) runtime.Errno {
		calls++
		assert.Same(t, object, o)
		return syscall.EBUSY
	}))
	assert.Equal(t, syscall.EINVAL, f(Args{0}))
	assert.Equal(t, syscall.EINVAL, f(Args{4}))
	assert.Zero(t, calls)
	assert.Equal(t, syscall.EBUSY, f(Args{5}))
	assert.Equal(t, 1, calls)
}

// TestList: the length is limited, and NULL is not read.
func TestList(t *testing.T) {
	of := &[4]uint16{1, 2, 3, 4}
	p := ibv.PtrTo(&of[0])
	list, ok := List(p, 3, 3)
	assert.True(t, ok)
	assert.Equal(t, of[:3], list)
	for _, bad := range []struct {
		p ibv.Ptr[uint16]
		n uint64
	}{{p, 4}, {p, math.MaxUint64}, {p, 1 << 32}, {0, 1}} {
		list, ok = List(bad.p, bad.n, 3)
		assert.False(t, ok, bad)
		assert.Nil(t, list)
	}
	for _, none := range []ibv.Ptr[uint16]{0, 1, p} { // any address is valid for 0 values
		list, ok = List(none, 0, 3)
		assert.True(t, ok)
		assert.Empty(t, list)
	}
}

// TestText: a string must end with NUL within the limit.
func TestText(t *testing.T) {
	of := func(s string, most int) (string, bool) {
		b := append([]byte(s), 0)
		return Text(ibv.Ptr[byte](uintptr(unsafe.Pointer(&b[0]))), most)
	}
	for _, c := range []struct {
		s    string
		most int
		ok   bool
	}{{"", 0, true}, {"", 5, true}, {"node", 5, true}, {"nodes", 5, true}, {"nodes7", 5, false}, {"n", 0, false}} {
		got, ok := of(c.s, c.most)
		assert.Equal(t, c.ok, ok, c)
		if c.ok {
			assert.Equal(t, c.s, got)
		} else {
			assert.Empty(t, got)
		}
	}
	_, ok := Text(0, 5)
	assert.False(t, ok, "NULL is no string")
}
