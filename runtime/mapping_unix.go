// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package runtime

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapGuarded maps size bytes after guard inaccessible bytes.
func mapGuarded(guard, size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, guard+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	if err := unix.Mprotect(b[:guard], unix.PROT_NONE); err != nil {
		unix.Munmap(b)
		return nil, err
	}
	return b, nil
}

// unmap unmaps memory of mapGuarded.
func unmap(b []byte) error { return unix.Munmap(b) }

// reserve reserves inaccessible addresses.
func reserve(size uintptr) (uintptr, error) {
	p, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|mapNoReserve)
	return uintptr(p), err
}

// commit turns reserved addresses into memory.
func commit(address, size uintptr) error {
	return unix.Mprotect(unsafe.Slice((*byte)(pointer(address)), size), unix.PROT_READ|unix.PROT_WRITE)
}
