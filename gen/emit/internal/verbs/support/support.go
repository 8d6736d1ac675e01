// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package support

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// check rejects a library whose pthread_mutex_t, which is embedded in objects, has another size than in the layouts.
// Among the targets this happens only on arm64: 48 bytes in the GNU C library, 40 in musl.
func check(l *runtime.Library) error {
	const musl = 40
	if size := unsafe.Sizeof(ibv.PthreadMutex{}); size != musl && !runtime.GNU() {
		return fmt.Errorf("%s: pthread_mutex_t has %d bytes in the layouts (GNU C library) "+
			"but %d in this process", l.SOName, size, musl)
	}
	return nil
}

// integers constrains the results that C functions return in a register.
type integers interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// asObject returns the T at an address that C returned.
func asObject[T any](address uintptr, err error) (*T, error) {
	return *(**T)(unsafe.Pointer(&address)), err
}

// asNumber returns the low bits of a register; the bits above the C type are undefined.
func asNumber[T integers](register uint64, err error) (T, error) { return T(register), err }

// asInt is asNumber for a C int.
func asInt(register uint64, err error) (int, error) { return int(int32(register)), err }

// asBool is asNumber for a truth value.
func asBool[T integers](register uint64, err error) (bool, error) { return T(register) != 0, err }

// asString copies the C string at an address that C returned; NULL is "".
func asString(address uintptr, err error) (string, error) {
	if address == 0 {
		return "", err
	}
	first, n := *(**byte)(unsafe.Pointer(&address)), 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(first), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(first, n)), err
}

// text returns a C string; "" is NULL.
func text(s string) *byte {
	if s == "" {
		return nil
	}
	return &append([]byte(s), 0)[0]
}

// truth converts a bool to a C truth value.
func truth(b bool) uintptr {
	if b {
		return 1
	}
	return 0
}
