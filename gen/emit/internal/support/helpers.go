// SPDX-License-Identifier: BSD-2-Clause

package support

import "unsafe"

// arm returns the T at offset delta in storage. The generator guarantees that it fits and is aligned.
func arm[T any](storage unsafe.Pointer, delta uintptr) *T { return (*T)(unsafe.Add(storage, delta)) }

// trailing returns the n elements at offset delta from the start of a record, which follow it. The caller has allocated
// them.
func trailing[T any](record unsafe.Pointer, delta uintptr, n int) []T {
	return unsafe.Slice((*T)(unsafe.Add(record, delta)), n)
}

// loadUnaligned returns a copy of the T stored in bytes.
func loadUnaligned[T any](bytes []byte) (v T) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), bytes)
	return v
}

// storeUnaligned stores v in bytes.
func storeUnaligned[T any](bytes []byte, v T) {
	copy(bytes, unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// loadBits reads a bitfield of width bits. first counts in C's allocation order: from the lowest bit of each byte on
// little-endian machines, and from the highest on big-endian ones.
func loadBits[T integer](storage unsafe.Pointer, first, width uintptr) T {
	var v uint64
	big := hostIsBigEndian()
	for i := range width {
		at := first + i
		b := uint64(*(*byte)(unsafe.Add(storage, at/8)))
		if big {
			v = v<<1 | b>>(7-at%8)&1
		} else {
			v |= b >> (at % 8) & 1 << i
		}
	}
	if ^T(0) < 0 { // sign extension, as in C
		v = uint64(int64(v<<(64-width)) >> (64 - width))
	}
	return T(v)
}

// storeBits writes a bitfield without changing the adjacent bits.
func storeBits[T integer](storage unsafe.Pointer, first, width uintptr, v T) {
	big := hostIsBigEndian()
	for i := range width {
		at, bit := first+i, uint64(v)>>i&1
		mask := byte(1) << (at % 8)
		if big {
			bit, mask = uint64(v)>>(width-1-i)&1, 0x80>>(at%8)
		}
		b := (*byte)(unsafe.Add(storage, at/8))
		*b &^= mask
		if bit != 0 {
			*b |= mask
		}
	}
}

// hostIsBigEndian reports whether the machine is big endian. The compiler evaluates it to a constant.
func hostIsBigEndian() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 0
}
