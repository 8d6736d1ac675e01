// SPDX-License-Identifier: BSD-2-Clause

package mem

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
	"golang.org/x/sys/unix"
)

// populates reports whether the kernel supports MADV_POPULATE.
var populates = sync.OnceValue(func() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return false
	}
	defer unix.Munmap(page)
	return unix.Madvise(page, unix.MADV_POPULATE_WRITE) == nil
})

// Mapped returns EFAULT unless the complete range is mapped. It does not touch the memory.
func Mapped(address, length uintptr) runtime.Errno {
	return eachPart(address, length, func(uintptr, uintptr) runtime.Errno { return 0 })
}

// Present checks that a range is mapped and can be read, or written. Like a device that pins memory, it faults in all
// pages.
func Present(address, length uintptr, write bool) runtime.Errno {
	advice := uintptr(unix.MADV_POPULATE_READ)
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	return eachPart(address, length, func(from, n uintptr) runtime.Errno {
		if !populates() {
			return 0
		}
		errno := syscall.EINTR
		for errno == syscall.EINTR {
			_, _, errno = unix.Syscall(unix.SYS_MADVISE, from, n, advice)
		}
		if errno != 0 && errno != syscall.EAGAIN {
			return syscall.EFAULT
		}
		return 0
	})
}

// eachPart calls a function with parts of a range, as far as they are mapped.
func eachPart(address, length uintptr, with func(from, n uintptr) runtime.Errno) runtime.Errno {
	page := uintptr(os.Getpagesize())
	first, last := address&^(page-1), (address+length-1)&^(page-1)
	var resident [512]byte
	for from := first; from <= last && from >= first; from += page * uintptr(len(resident)) {
		n := min(last-from+page, page*uintptr(len(resident)))
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, from, n, uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
			return syscall.EFAULT
		}
		if errno := with(from, n); errno != 0 {
			return errno
		}
	}
	return 0
}
