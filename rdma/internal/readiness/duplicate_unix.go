// SPDX-License-Identifier: BSD-2-Clause

//go:build unix && !aix

package readiness

import "golang.org/x/sys/unix"

// duplicate gives a descriptor of the same file, which does not block and is not passed on to other programs.
func duplicate(fd int) (int, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return -1, err
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}
