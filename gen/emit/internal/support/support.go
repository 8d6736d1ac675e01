// SPDX-License-Identifier: BSD-2-Clause

// Package support holds the code of the generated packages that does not come from a header. The generator copies this
// file (byte-order types and pointers) and address.go (GUIDs and Ethernet addresses) to the package that the others
// import. It copies helpers.go (unsafe code for accessors) and text.go (printing and parsing values by name) to every
// package. Packages of types therefore import only each other.
package support

import (
	"math/bits"
	"unsafe"
)

// BE16 is a 16-bit number in network byte order (__be16).
type BE16 uint16

// BE32 is a 32-bit number in network byte order (__be32).
type BE32 uint32

// BE64 is a 64-bit number in network byte order (__be64).
type BE64 uint64

// ToBE16 converts from host to network byte order.
func ToBE16(v uint16) BE16 { return BE16(BE16(v).Host()) }

// ToBE32 converts from host to network byte order.
func ToBE32(v uint32) BE32 { return BE32(BE32(v).Host()) }

// ToBE64 converts from host to network byte order.
func ToBE64(v uint64) BE64 { return BE64(BE64(v).Host()) }

// Host returns the number in host byte order.
func (v BE16) Host() uint16 {
	if hostIsBigEndian() {
		return uint16(v)
	}
	return bits.ReverseBytes16(uint16(v))
}

// Host returns the number in host byte order.
func (v BE32) Host() uint32 {
	if hostIsBigEndian() {
		return uint32(v)
	}
	return bits.ReverseBytes32(uint32(v))
}

// Host returns the number in host byte order.
func (v BE64) Host() uint64 {
	if hostIsBigEndian() {
		return uint64(v)
	}
	return bits.ReverseBytes64(uint64(v))
}

// String returns the number in host byte order, in decimal.
func (v BE16) String() string { return string(appendInteger(nil, v.Host())) }

// MarshalText returns the same text as String.
func (v BE16) MarshalText() ([]byte, error) { return appendInteger(nil, v.Host()), nil }

// UnmarshalText parses the number, in decimal or in hex after 0x.
func (v *BE16) UnmarshalText(text []byte) error {
	return parseBE(text, "16", func(n uint16) { *v = ToBE16(n) })
}

// MarshalJSON returns the number.
func (v BE16) MarshalJSON() ([]byte, error) { return v.MarshalText() }

// UnmarshalJSON parses a number or a string.
func (v *BE16) UnmarshalJSON(json []byte) error { return fromJSON(json, v.UnmarshalText) }

// String returns the number in host byte order, in decimal.
func (v BE32) String() string { return string(appendInteger(nil, v.Host())) }

// MarshalText returns the same text as String.
func (v BE32) MarshalText() ([]byte, error) { return appendInteger(nil, v.Host()), nil }

// UnmarshalText parses the number, in decimal or in hex after 0x.
func (v *BE32) UnmarshalText(text []byte) error {
	return parseBE(text, "32", func(n uint32) { *v = ToBE32(n) })
}

// MarshalJSON returns the number.
func (v BE32) MarshalJSON() ([]byte, error) { return v.MarshalText() }

// UnmarshalJSON parses a number or a string.
func (v *BE32) UnmarshalJSON(json []byte) error { return fromJSON(json, v.UnmarshalText) }

// String returns the number in host byte order, in decimal.
func (v BE64) String() string { return string(appendInteger(nil, v.Host())) }

// MarshalText returns the same text as String.
func (v BE64) MarshalText() ([]byte, error) { return appendInteger(nil, v.Host()), nil }

// UnmarshalText parses the number, in decimal or in hex after 0x.
func (v *BE64) UnmarshalText(text []byte) error {
	return parseBE(text, "64", func(n uint64) { *v = ToBE64(n) })
}

// MarshalJSON returns the number.
func (v BE64) MarshalJSON() ([]byte, error) { return v.MarshalText() }

// UnmarshalJSON parses a number or a string.
func (v *BE64) UnmarshalJSON(json []byte) error { return fromJSON(json, v.UnmarshalText) }

// parseBE parses a number in host byte order.
func parseBE[T integer](text []byte, bits string, set func(T)) error {
	n, ok := parseInteger[T](trim(string(text)))
	if !ok {
		return &textError{string(text), "a number of " + bits + " bits", "write it in decimal, or in hex after 0x"}
	}
	set(n)
	return nil
}

// Ptr is the address of a T in memory that the garbage collector does not manage or that the program keeps alive: the
// collector does not follow it. C structures hold a Ptr where C has T *. The zero value is NULL.
type Ptr[T any] uintptr

// PtrTo returns the address of v. It does not keep v alive. PtrTo forces v to escape to the heap, since a goroutine's
// stack moves.
func PtrTo[T any](v *T) Ptr[T] {
	if never {
		escaped = unsafe.Pointer(v)
	}
	return Ptr[T](uintptr(unsafe.Pointer(v)))
}

var (
	never   bool // always false, which the compiler cannot prove
	escaped unsafe.Pointer
)

// Deref returns the T at the address, or nil for NULL. The address must come from C, from memory outside Go's heap, or
// from a T that is still alive.
func (p Ptr[T]) Deref() *T {
	// convert the bits, since vet rejects a conversion from uintptr
	return *(**T)(unsafe.Pointer(&p))
}

// FuncPtr is the address of a C function. The zero value is NULL: the library or the device does not provide the
// function.
type FuncPtr uintptr
