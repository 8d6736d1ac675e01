package soft

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
	"golang.org/x/sys/unix"
)

// populates says whether this kernel can be asked if memory is there to be written.
var populates = sync.OnceValue(func() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return false
	}
	defer unix.Munmap(page)
	return unix.Madvise(page, unix.MADV_POPULATE_WRITE) == nil
})

// mapped says whether there is memory at all these addresses.
func mapped(address, length uintptr) runtime.Errno {
	var resident [512]byte
	return inPieces(address, length, uintptr(len(resident)), func(from, n uintptr) syscall.Errno {
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, from, n, uintptr(unsafe.Pointer(&resident[0])))
		return errno
	})
}

// present says whether memory is mapped, and whether all of it can be read, or written: as a device that pins it, it makes all of it be
// there.
func present(address, length uintptr, write bool) runtime.Errno {
	if errno := mapped(address, length); errno != 0 || !populates() {
		return errno
	}
	advice := uintptr(unix.MADV_POPULATE_READ)
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	return inPieces(address, length, 512, func(from, n uintptr) (errno syscall.Errno) {
		for errno = syscall.EINTR; errno == syscall.EINTR; {
			_, _, errno = unix.Syscall(unix.SYS_MADVISE, from, n, advice)
		}
		if errno == syscall.EAGAIN {
			return 0
		}
		return errno
	})
}

// inPieces asks the kernel about the pages of a range, so many at a time.
func inPieces(address, length, pages uintptr, ask func(from, n uintptr) syscall.Errno) runtime.Errno {
	page := uintptr(os.Getpagesize())
	first, last := address&^(page-1), (address+length-1)&^(page-1)
	for from := first; from <= last && from >= first; from += page * pages {
		if ask(from, min(last-from+page, page*pages)) != 0 {
			return efault
		}
	}
	return 0
}
