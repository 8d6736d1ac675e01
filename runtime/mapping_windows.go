// SPDX-License-Identifier: BSD-2-Clause

package runtime

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapGuarded maps size bytes after guard inaccessible bytes.
func mapGuarded(guard, size int) ([]byte, error) {
	p, err := windows.VirtualAlloc(0, uintptr(guard+size), windows.MEM_RESERVE, windows.PAGE_NOACCESS)
	if err != nil {
		return nil, err
	}
	b := unsafe.Slice((*byte)(pointer(p)), guard+size)
	if err := commit(p+uintptr(guard), uintptr(size)); err != nil {
		unmap(b)
		return nil, err
	}
	return b, nil
}

// unmap unmaps memory of mapGuarded.
func unmap(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0, windows.MEM_RELEASE)
}

// reserve reserves inaccessible addresses.
func reserve(size uintptr) (uintptr, error) {
	return windows.VirtualAlloc(0, size, windows.MEM_RESERVE, windows.PAGE_NOACCESS)
}

// commit turns reserved addresses into memory.
func commit(address, size uintptr) error {
	_, err := windows.VirtualAlloc(address, size, windows.MEM_COMMIT, windows.PAGE_READWRITE)
	return err
}
