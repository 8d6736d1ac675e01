// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// mapShared maps a file, synchronously if its file system can: on persistent memory. Kernels and file systems without
// it return EOPNOTSUPP, and kernels before 4.15 EINVAL.
func mapShared(file *os.File, size int) (b []byte, persistent bool, err error) {
	const prot = unix.PROT_READ | unix.PROT_WRITE
	b, err = unix.Mmap(int(file.Fd()), 0, size, prot, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
	if err == nil {
		return b, true, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		return nil, false, os.NewSyscallError("mmap", err)
	}
	b, err = unix.Mmap(int(file.Fd()), 0, size, prot, unix.MAP_SHARED)
	return b, false, os.NewSyscallError("mmap", err)
}

func syncShared(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return os.NewSyscallError("msync", unix.Msync(b, unix.MS_SYNC))
}

func unmapShared(b []byte) error { return os.NewSyscallError("munmap", unix.Munmap(b)) }
