// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

// weigh computes the same value from arguments as testdata/calls.c.
const maxArgs = 9 // of a function

func weigh(args ...uintptr) uintptr {
	sum := uintptr(len(args))
	for _, a := range args {
		sum = sum*1000003 + a
	}
	return sum
}

var distinct = []uintptr{0x1111111111111111, 0x2222222222222222, 3, 0x4444444444444444, 5, ^uintptr(0),
	0x7777777777777777, 0x8888888888888888, 0x9999999999999999}

func TestEveryArgumentArrives(t *testing.T) {
	for n := range maxArgs + 1 {
		got, err := function(fmt.Sprintf("weigh%d", n)).Exported().Value(distinct[:n]...)
		require.NoError(t, err)
		assert.EqualValues(t, weigh(distinct[:n]...), got, "%d arguments", n)
	}
	for n := range maxArgs {
		got, err := function("weighvar").Exported().Value(append([]uintptr{uintptr(n)}, distinct[:n]...)...)
		require.NoError(t, err)
		assert.EqualValues(t, weigh(distinct[:n]...), got, "%d arguments of a variadic function", n)
	}
	assert.Panics(t, func() { function("weigh9").Exported().Value(make([]uintptr, maxArgs+1)...) })
}

// TestErrorsOfCodes checks that a library-specific error number is converted by the given function.
func TestErrorsOfCodes(t *testing.T) {
	give := function("give_int")
	give = &runtime.Function{Library: give.Library, Name: give.Name}
	assert.NoError(t, give.Exported().Code(codeOf, 0, arg(int64(syscall.EAGAIN))))
	err := give.Exported().Code(codeOf, arg(-100004), arg(int64(syscall.EADDRINUSE)))
	assert.ErrorIs(t, err, code(-100004))
	assert.NotErrorIs(t, err, code(-100003))
	var failed *runtime.CodeError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, runtime.CodeError{Function: "give_int", Code: code(-100004), Errno: syscall.EADDRINUSE}, *failed)
	assert.EqualError(t, err, "give_int: code -100004 (errno: address already in use)")
	again := give.Exported().Code(codeOf, arg(-100004), arg(int64(syscall.EADDRINUSE)))
	assert.Same(t, err, again, "a repeated error is created once")
	err = give.Exported().Code(codeOf, arg(-100005), 0)
	assert.EqualError(t, err, "give_int: code -100005")
	assert.ErrorContains(t, function("gone").Exported().Code(codeOf), "does not export it")
}

type code int32

func codeOf(n int32) error   { return code(n) }
func (c code) Error() string { return fmt.Sprintf("code %d", int32(c)) }

func arg(n int64) uintptr { return uintptr(n) }

func TestErrorsOfAnInt(t *testing.T) {
	give := function("give_int")
	const huge = 1 << 20 // no error has this number
	for _, c := range []struct {
		result   int64
		errno    syscall.Errno
		Errno    error
		MinusOne error
		Status   error
		Negative error
	}{
		{result: 0},
		{result: 0, errno: syscall.EIO}, // errno has no meaning after a success
		{result: 5, errno: syscall.EIO, Errno: syscall.Errno(5), Status: syscall.Errno(5)},
		{result: -1, errno: syscall.EAGAIN, Errno: syscall.EAGAIN, MinusOne: syscall.EAGAIN, Status: syscall.EAGAIN,
			Negative: syscall.EAGAIN},
		{result: int64(syscall.EINVAL), Errno: syscall.EINVAL, Status: syscall.EINVAL},
		{result: -int64(syscall.EINVAL), Errno: syscall.EINVAL, Status: syscall.EINVAL, Negative: syscall.EINVAL},
		{result: -int64(syscall.EINVAL), errno: syscall.EIO, Errno: syscall.EINVAL, Status: syscall.EINVAL,
			Negative: syscall.EINVAL},
		{result: -1, errno: syscall.ENOMEM, Errno: syscall.ENOMEM, MinusOne: syscall.ENOMEM, Status: syscall.ENOMEM,
			Negative: syscall.ENOMEM},
		{result: math.MinInt32, Errno: syscall.Errno(1 << 31), Status: syscall.Errno(1 << 31),
			Negative: syscall.Errno(1 << 31)},
		{result: -1, Errno: syscall.EPERM, MinusOne: errNoReason, Status: errNoReason, Negative: syscall.EPERM},
	} {
		check := func(convention string, want, got error) {
			t.Helper()
			finding := fmt.Sprintf("%s of %d with errno %d", convention, c.result, int(c.errno))
			if want == nil {
				assert.NoError(t, got, finding)
				return
			}
			var failed *runtime.CallError
			require.ErrorAs(t, got, &failed, finding)
			assert.Equal(t, "give_int", failed.Function)
			if want == errNoReason {
				assert.Zero(t, failed.Errno, finding)
				assert.EqualError(t, got, "give_int: failed without an error number")
				assert.NoError(t, errors.Unwrap(got))
			} else {
				assert.ErrorIs(t, got, want, finding)
			}
		}
		check("Errno", c.Errno, give.Exported().Errno(arg(c.result), uintptr(c.errno)))
		n, err := give.Exported().MinusOne(arg(c.result), uintptr(c.errno))
		check("MinusOne", c.MinusOne, err)
		assert.EqualValues(t, c.result, n)
		check("Status", c.Status, give.Exported().Status(arg(c.result), uintptr(c.errno)))
		check("Status3", c.Status, give.Exported().Status3(arg(c.result), uintptr(c.errno), 0))
		n, err = give.Exported().NegativeErrno(arg(c.result), uintptr(c.errno))
		check("NegativeErrno", c.Negative, err)
		if err == nil {
			assert.EqualValues(t, c.result, n)
		}
		assert.NoError(t, give.Exported().Void(arg(c.result), uintptr(c.errno)))
		result, errno, err := give.Exported().Raw(arg(c.result), uintptr(c.errno))
		assert.NoError(t, err)
		assert.EqualValues(t, c.result, int32(result))
		assert.Equal(t, c.errno, errno)
	}
	n, err := give.Exported().MinusOne(huge, 0)
	assert.NoError(t, err)
	assert.Equal(t, huge, n)
	_, err = give.Exported().MinusOne(arg(-1), arg(-22))
	assert.EqualError(t, err, "give_int: failed without an error number", "a negative errno is not an error number")
}

func TestRepeatedLookupDoesNotAllocate(t *testing.T) {
	give := function("give_int")
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if give.Exported().Status3(0, 0, 0) != nil ||
			!errors.Is(give.Exported().Status3(arg(-1), uintptr(syscall.EAGAIN), 0), syscall.EAGAIN) {
			panic("wrong")
		}
	}))
}

var errNoReason = errors.New("no reason")

func TestErrorsOfALongAndOfAPointer(t *testing.T) {
	give := function("give_long").Exported()
	const wide = 1<<40 + 7
	n, err := give.MinusOneLong(wide, 0)
	assert.NoError(t, err)
	assert.EqualValues(t, wide, n)
	n, err = give.MinusOneLong(arg(-2), 0)
	assert.NoError(t, err)
	assert.EqualValues(t, -2, n)
	_, err = give.MinusOneLong(arg(-1), uintptr(syscall.EAGAIN))
	assert.ErrorIs(t, err, syscall.EAGAIN)
	// -1 as an int is not -1 as a long
	n, err = give.MinusOneLong(0xffffffff, uintptr(syscall.EAGAIN))
	assert.NoError(t, err)
	assert.EqualValues(t, 0xffffffff, n)

	n, err = give.NegativeErrnoLong(wide, 0)
	assert.NoError(t, err)
	assert.EqualValues(t, wide, n)
	_, err = give.NegativeErrnoLong(arg(-int64(syscall.EMSGSIZE)), 0)
	assert.ErrorIs(t, err, syscall.EMSGSIZE)

	pointer := function("give_pointer").Exported()
	p, err := pointer.Null(wide, uintptr(syscall.EIO))
	assert.NoError(t, err)
	assert.EqualValues(t, wide, p)
	_, err = pointer.Null(0, uintptr(syscall.ENODEV))
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.EqualError(t, err, "give_pointer: no such device")
	_, err = pointer.Null(0, 0)
	assert.EqualError(t, err, "give_pointer: failed without an error number")
}

func TestAnIntIsTheLowHalfOfARegister(t *testing.T) {
	dirty := function("dirty").Exported()
	assert.NoError(t, dirty.Errno(0))
	n, err := dirty.MinusOne(uintptr(7))
	assert.NoError(t, err)
	assert.Equal(t, 7, n)
	all, err := dirty.Value(uintptr(7))
	assert.NoError(t, err)
	assert.EqualValues(t, uint64(0xdeadbeef00000007), all)
}

func TestErrnoIsOfTheSameCall(t *testing.T) {
	give := function("give_int").Exported()
	require.ErrorIs(t, give.Errno(arg(-1), uintptr(syscall.ENOSPC)), syscall.ENOSPC)
	require.ErrorIs(t, give.Errno(arg(-1), 0), syscall.EPERM, "errno of the previous call must be cleared")

	libc := &runtime.Library{Name: "libc", SOName: "libc.so.6"}
	_, err := (&runtime.Function{Library: libc, Name: "close"}).Exported().MinusOne(uintptr(1 << 20))
	require.ErrorIs(t, err, syscall.EBADF)
	assert.EqualError(t, err, "close: bad file descriptor")
}

func TestErrnoOfManyGoroutines(t *testing.T) {
	give := function("give_int").Exported()
	done := make(chan error)
	for g := range 8 {
		go func() {
			want := syscall.Errno(10 + g)
			for range 2000 {
				if err := give.Errno(arg(-1), uintptr(want)); !errors.Is(err, want) {
					done <- fmt.Errorf("want %v, got %v", want, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		assert.NoError(t, <-done)
	}
}

func TestMemoryOfGoIsAnArgument(t *testing.T) {
	var value int64
	require.NoError(t, function("put").Exported().Void(uintptr(unsafe.Pointer(&value)), arg(-12345678901)))
	assert.EqualValues(t, -12345678901, value)
}

func TestCErrorsForUnsupported(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.ENOSYS} {
		err := function("give_int").Exported().Errno(uintptr(errno))
		assert.ErrorIs(t, err, runtime.ErrNotSupported)
		assert.ErrorIs(t, err, errno)
	}
	assert.NotErrorIs(t, function("give_int").Exported().Errno(uintptr(syscall.EINVAL)), runtime.ErrNotSupported)
}

func TestSlot(t *testing.T) {
	slot := &runtime.Function{Library: calls, Name: "alloc_mw", Since: "1.0"}
	got, err := slot.Slot(cfunc(t, "weigh3")).Value(1, 2, 3)
	require.NoError(t, err)
	assert.EqualValues(t, weigh(1, 2, 3), got)
	_, err = slot.Slot(0).Null(1, 2, 3)
	assert.ErrorIs(t, err, runtime.ErrNotSupported)
	assert.EqualError(t, err, "alloc_mw: the device's provider does not have it (rdma-core has it since 1.0)")
}
