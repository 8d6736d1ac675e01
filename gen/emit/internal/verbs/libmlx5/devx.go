// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package libmlx5

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// The functions of this file read and write fields of device commands. They do not call C. Fields are big endian, and
// bits are numbered from the highest bit of the first word.

// at returns the T at p + index*sizeof(T).
func at[T any](p uintptr, index uint64) *T {
	var t T
	p += uintptr(index) * unsafe.Sizeof(t)
	return *(**T)(unsafe.Pointer(&p))
}

// field returns the position of a field in its 32-bit word: its shift and its mask.
func field(bitOff, bitSz uint64) (shift, mask uint32) {
	return uint32(32 - bitSz - bitOff&31), uint32(uint64(1)<<bitSz - 1)
}

// DevxSet writes a field of up to 32 bits.
//
//verbs:c void _devx_set(void *p, uint32_t value, size_t bit_off, size_t bit_sz)
//go:uintptrescapes
func DevxSet(p uintptr, value uint32, bitOff, bitSz uint64) {
	word := at[ibv.BE32](p, bitOff/32)
	shift, mask := field(bitOff, bitSz)
	*word = ibv.ToBE32(word.Host()&^(mask<<shift) | value&mask<<shift)
}

// DevxGet reads a field of up to 32 bits.
//
//verbs:c uint32_t _devx_get(const void *p, size_t bit_off, size_t bit_sz)
//go:uintptrescapes
func DevxGet(p uintptr, bitOff, bitSz uint64) uint32 {
	shift, mask := field(bitOff, bitSz)
	return at[ibv.BE32](p, bitOff/32).Host() >> shift & mask
}

// DevxSet64 writes a field of 64 bits.
//
//verbs:c void _devx_set64(void *p, uint64_t v, size_t bit_off)
//go:uintptrescapes
func DevxSet64(p uintptr, v, bitOff uint64) { *at[ibv.BE64](p, bitOff/64) = ibv.ToBE64(v) }

// DevxGet64 reads a field of 64 bits.
//
//verbs:c uint64_t _devx_get64(const void *p, size_t bit_off)
//go:uintptrescapes
func DevxGet64(p uintptr, bitOff uint64) uint64 { return at[ibv.BE64](p, bitOff/64).Host() }
