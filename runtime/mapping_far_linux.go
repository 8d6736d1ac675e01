// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package runtime

import (
	"golang.org/x/sys/unix"
)

// reserveFar reserves inaccessible addresses, far from where the kernel places mappings without a given address, and
// from where Go's heap asks for memory.
func reserveFar(size uintptr) (uintptr, error) {
	// The process needs as much again for threads and its heap.
	p, err := unix.MmapPtr(-1, 0, nil, 2*size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return 0, err
	}
	if err := unix.MunmapPtr(p, 2*size); err != nil {
		return 0, err
	}
	for base := uintptr(0x20 << 40); base < 0x60<<40; base += 0x08 << 40 {
		p, err = unix.MmapPtr(-1, 0, pointer(base), size, unix.PROT_NONE,
			unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
		if err == nil {
			return uintptr(p), nil
		}
	}
	return 0, err
}
