//go:build !linux

package soft

import "github.com/goverbs/goverbs/runtime"

// mapped knows nothing of memory here, but that there is none at the lowest addresses.
func mapped(address, length uintptr) runtime.Errno {
	if address < 4096 {
		return efault
	}
	return 0
}

// present knows no more.
func present(address, length uintptr, write bool) runtime.Errno { return mapped(address, length) }
