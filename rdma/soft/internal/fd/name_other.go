// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package fd

import (
	"syscall"

	"github.com/goverbs/goverbs/runtime"
)

// Name identifies the file of a descriptor. It returns "" for a negative descriptor. On this system files cannot name
// domains.
func Name(fd int32) (string, runtime.Errno) {
	if fd != -1 {
		return "", syscall.EOPNOTSUPP
	}
	return "", 0
}
