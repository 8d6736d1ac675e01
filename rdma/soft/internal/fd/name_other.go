// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package fd

import (
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// Name tells which file a descriptor is of; "" is for none. Here no file names a domain.
func Name(fd int32) (string, runtime.Errno) {
	if fd != -1 {
		return "", syscall.EOPNOTSUPP
	}
	return "", 0
}
