// SPDX-License-Identifier: BSD-2-Clause

//go:build unix && !aix

package readiness

import "golang.org/x/sys/unix"

func setNonblock(fd int) error { return unix.SetNonblock(fd, true) }

// duplicate returns a descriptor of the same file that child processes do not inherit.
func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
