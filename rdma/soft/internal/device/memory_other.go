//go:build !linux

package device

import "github.com/goverbs/goverbs/runtime"

// present knows nothing of memory here, but that there is none at the lowest addresses.
func present(address, length uintptr, write bool) runtime.Errno {
	if address < 4096 {
		return efault
	}
	return 0
}
