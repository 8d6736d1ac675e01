// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"os"

	"golang.org/x/sys/unix"
)

// populate makes the kernel map writable pages: madvise(2) with MADV_POPULATE_WRITE. It changes no byte.
func populate(start, end uintptr) error {
	page := uintptr(os.Getpagesize())
	start, end = start&^(page-1), (end+page-1)&^(page-1)
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_POPULATE_WRITE)
		switch errno {
		case 0:
			return nil
		case unix.EAGAIN, unix.EINTR:
		default:
			return os.NewSyscallError("madvise", errno)
		}
	}
}
