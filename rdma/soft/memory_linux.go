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

// present says whether memory is mapped, all of it, and whether it is to be read, or written, at its ends.
func present(address, length uintptr, write bool) runtime.Errno {
	page := uintptr(os.Getpagesize())
	first, last := address&^(page-1), (address+length-1)&^(page-1)
	var resident [512]byte
	for from := first; from <= last && from >= first; from += page * uintptr(len(resident)) {
		n := min(last-from+page, page*uintptr(len(resident)))
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, from, n, uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
			return efault
		}
	}
	if !populates() {
		return 0
	}
	advice := uintptr(unix.MADV_POPULATE_READ)
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	for _, at := range []uintptr{first, last} {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, at, page, advice); errno != 0 && errno != syscall.EAGAIN && errno != syscall.EINTR {
			return efault
		}
	}
	return 0
}
