// SPDX-License-Identifier: BSD-2-Clause

package support

import "unsafe"

// arm is the T that lies delta bytes into storage. The generator proves that it fits and is aligned.
func arm[T any](storage unsafe.Pointer, delta uintptr) *T { return (*T)(unsafe.Add(storage, delta)) }

// trailing is the n elements that follow a record delta bytes from its start. The caller has allocated them.
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
