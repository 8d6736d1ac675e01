// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package runtime

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Callable lets C call the functions of the [Space] that contains address: it writes a few instructions to the address
// of each present and future function, which jump to entry. They pass the function's address, for [CallSlot], in the
// register r10 on amd64 and x16 on arm64, and change no other register but x17. Libraries that offer a backend to C
// programs use it.
func Callable(address, entry uintptr) error {
	s := spaceOf(address)
	if s == nil {
		return fmt.Errorf("goverbs: %#x is not in the memory of a software backend", address)
	}
	code := make([]byte, slotCode)
	last := slotCode - slotStride
	for at := 0; at < last; at += slotStride {
		jump(code[at:], last-at)
	}
	binary.NativeEndian.PutUint64(code[last:], uint64(entry))
	// Hardened kernels forbid executing anonymous memory that was once written, but not a file's pages.
	fd, err := unix.MemfdCreate("goverbs-functions", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("goverbs: memory for functions that C calls: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, code, 0); err != nil {
		return fmt.Errorf("goverbs: memory for functions that C calls: %w", err)
	}
	_, err = unix.MmapPtr(fd, 0, pointer(s.base), slotCode, unix.PROT_READ|unix.PROT_EXEC,
		unix.MAP_PRIVATE|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("goverbs: memory for functions that C calls: %w", err)
	}
	return nil
}
