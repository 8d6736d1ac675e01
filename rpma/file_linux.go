// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// open opens a file. It does not follow a symbolic link in the last element of the name: a user who can write to the
// directory could otherwise choose the file that peers write to.
func open(name string, flags int) (*os.File, error) {
	file, err := os.OpenFile(name, flags|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.ELOOP) {
		err = fmt.Errorf("%w: symbolic links are not followed; name the target, or open it and call MapFile", err)
	}
	return file, err
}

// extend sets the file's size, and allocates its blocks if the file system supports that.
func extend(file *os.File, size int64) error {
	for {
		switch err := unix.Fallocate(int(file.Fd()), 0, 0, size); err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EOPNOTSUPP:
			return file.Truncate(size)
		default:
			return &os.PathError{Op: "fallocate", Path: file.Name(), Err: err}
		}
	}
}

// mapShared maps a file. It uses MAP_SYNC if the file system supports it, as on persistent memory. Otherwise kernels
// return EOPNOTSUPP, or before 4.15 EINVAL.
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
