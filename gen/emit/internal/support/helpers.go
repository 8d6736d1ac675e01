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

// bitName is one name of a set of flags.
type bitName struct {
	bits uint64
	name string
}

// formatFlags prints the names of the bits that are set, joined by |, and the unknown rest in hex.
func formatFlags(v uint64, names []bitName) string {
	if v == 0 {
		return "0"
	}
	var s []byte
	add := func(name string) {
		if len(s) > 0 {
			s = append(s, '|')
		}
		s = append(s, name...)
	}
	for _, n := range names {
		if n.bits == v {
			return n.name
		}
	}
	for _, n := range names {
		if n.bits&(n.bits-1) == 0 && v&n.bits != 0 {
			add(n.name)
			v &^= n.bits
		}
	}
	if v != 0 {
		add(string(appendNumber([]byte("0x"), v, 16)))
	}
	return string(s)
}

// formatUnknown prints a value that the headers do not name: hardware and libraries are newer than any header.
func formatUnknown(enum string, v int64) string {
	s := append([]byte(enum), '(')
	u := uint64(v)
	if v < 0 {
		s, u = append(s, '-'), -u
	}
	return string(append(appendNumber(s, u, 10), ')'))
}

// appendNumber stands in for strconv, which would bring Go's runtime into the build of a package of nouns: as it is,
// the package compiles for any GOOS and GOARCH in a fraction of a second.
func appendNumber(s []byte, v, base uint64) []byte {
	if v >= base {
		s = appendNumber(s, v/base, base)
	}
	return append(s, "0123456789abcdef"[v%base])
}
