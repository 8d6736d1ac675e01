// SPDX-License-Identifier: BSD-2-Clause

// Package mem accesses memory that programs name by address: typed access, and copies as a device makes them.
package mem

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Segment is a validated range of this process's memory: of a registered region, or of the inline data of a request. It
// is not kept longer than its message.
type Segment struct {
	Base   uint64 // 0: a null region, which reads as zeros and discards writes
	Length uint64
}

// Skip drops the first n bytes.
func (s *Segment) Skip(n uint64) {
	if s.Base != 0 {
		s.Base += n
	}
	s.Length -= n
}

// Skip drops the first n bytes of a list, which it modifies.
func Skip(from []Segment, n uint64) []Segment {
	for len(from) > 0 && n > 0 {
		k := min(n, from[0].Length)
		from[0].Skip(k)
		n -= k
		if from[0].Length == 0 {
			from = from[1:]
		}
	}
	return from
}

// Pointer converts an address to a pointer.
func Pointer(address uint64) unsafe.Pointer {
	bits := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&bits))
}

// At returns the T at an address from a C structure or a caller, or nil for NULL.
func At[T any](address uint64) *T { return (*T)(Pointer(address)) }

// List returns the n T's at an address.
func List[T any](address uint64, n int) []T { return unsafe.Slice(At[T](address), n) }

// AddressOf returns the address of v, which must not be on a goroutine's stack, because stacks move.
func AddressOf[T any](v *T) uint64 { return uint64(ibv.PtrTo(v)) }
