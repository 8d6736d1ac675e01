// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package runtime

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Callable lets C call the functions of the [Space] that contains address: it puts a few instructions at the address of
// each, present and future, which jump to entry. They leave the function's address, for [CallSlot], in the register r10
// on amd64 and x16 on arm64, and change no other but x17. It serves libraries that offer a backend to C programs.
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
	// A file's pages may be executed where a hardened kernel forbids it for memory that was once written.
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
