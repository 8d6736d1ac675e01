// SPDX-License-Identifier: BSD-2-Clause

package support

import "unsafe"

// arm returns the T that lies delta bytes into storage. The generator proves that it fits and is aligned.
func arm[T any](storage unsafe.Pointer, delta uintptr) *T { return (*T)(unsafe.Add(storage, delta)) }

// trailing returns the n elements that follow a record delta bytes from its start. The caller has allocated them.
func trailing[T any](record unsafe.Pointer, delta uintptr, n int) []T {
	return unsafe.Slice((*T)(unsafe.Add(record, delta)), n)
}

// loadUnaligned copies a T out of bytes of its size.
func loadUnaligned[T any](bytes []byte) (v T) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), bytes)
	return v
}

// storeUnaligned copies a T into bytes of its size.
func storeUnaligned[T any](bytes []byte, v T) {
	copy(bytes, unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// loadBits reads a bitfield: width bits from the first on, in C's allocation order, from the lowest bit of each byte on
// a little-endian machine and from the highest on a big-endian one.
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
	if ^T(0) < 0 { // C sign-extends
		v = uint64(int64(v<<(64-width)) >> (64 - width))
	}
	return T(v)
}

// storeBits writes a bitfield and keeps the bits around it.
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

// hostIsBigEndian reports whether the machine is big endian. The compiler folds it to a constant.
func hostIsBigEndian() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 0
}
