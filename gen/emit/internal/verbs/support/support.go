// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package support

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// check refuses the library where the C library's mutex, which stands in the middle of objects, has another size than
// in the layouts. Of the targets that is so on arm64 alone: 48 bytes in the GNU C library, 40 in musl.
func check(l *runtime.Library) error {
	const musl = 40
	if size := unsafe.Sizeof(ibv.PthreadMutex{}); size != musl && !runtime.GNU() {
		return fmt.Errorf("%s: pthread_mutex_t has %d bytes in the layouts, which are those of the GNU C library, "+
			"and %d in that of this process", l.SOName, size, musl)
	}
	return nil
}

// integers are what C functions return in a register.
type integers interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// asObject is the T at an address that C gave.
func asObject[T any](address uintptr, err error) (*T, error) {
	return *(**T)(unsafe.Pointer(&address)), err
}

// asNumber takes the bits that C means; those above them are anything.
func asNumber[T integers](register uint64, err error) (T, error) { return T(register), err }

// asInt is asNumber for a C int.
func asInt(register uint64, err error) (int, error) { return int(int32(register)), err }

// asBool is asNumber for a truth value.
func asBool[T integers](register uint64, err error) (bool, error) { return T(register) != 0, err }

// asString copies the text at an address that C gave; NULL is "".
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

// text is a string as C wants it; "" is NULL.
func text(s string) *byte {
	if s == "" {
		return nil
	}
	return &append([]byte(s), 0)[0]
}

// truth is a bool as C wants it.
func truth(b bool) uintptr {
	if b {
		return 1
	}
	return 0
}
