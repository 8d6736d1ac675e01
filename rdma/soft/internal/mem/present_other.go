// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package mem

import (
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// Present rejects only the lowest addresses, because this system offers no way to check memory.
func Present(address, length uintptr, write bool) runtime.Errno {
	if address < 4096 {
		return syscall.EFAULT
	}
	return 0
}

// Mapped is Present.
func Mapped(address, length uintptr) runtime.Errno { return Present(address, length, false) }
