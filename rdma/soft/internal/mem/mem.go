// SPDX-License-Identifier: BSD-2-Clause

// Package mem is memory that programs name by its address: typed access, and copies as a device makes them.
package mem

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Segment is a range of memory of this process that was looked up: of a registered region, or of the inline bytes of a
// request. It is not kept beyond the message that has it.
type Segment struct {
	Base   uint64 // 0 is a null region: it reads as zeros and takes any write
	Length uint64
}

// Skip leaves out the first n bytes.
func (s *Segment) Skip(n uint64) {
	if s.Base != 0 {
		s.Base += n
	}
	s.Length -= n
}

// Skip leaves out the first n bytes of a list, which it changes.
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

// Pointer reads an address as a pointer: the bits are the same.
func Pointer(address uint64) unsafe.Pointer {
	bits := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&bits))
}

// At is the T at an address that C's layout or a caller gave, or nil for NULL.
func At[T any](address uint64) *T { return (*T)(Pointer(address)) }

// List is the n T's at an address.
func List[T any](address uint64, n int) []T { return unsafe.Slice(At[T](address), n) }

// AddressOf is where v is: not on a goroutine's stack, which moves.
func AddressOf[T any](v *T) uint64 { return uint64(ibv.PtrTo(v)) }
