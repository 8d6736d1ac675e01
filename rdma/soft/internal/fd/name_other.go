// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package fd

import (
	"github.com/goverbs/goverbs/runtime"

	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
)

// Name tells which file a descriptor is of; "" is for none. Here no file names a domain.
func Name(fd int32) (string, runtime.Errno) {
	if fd != -1 {
		return "", errnos.EOPNOTSUPP
	}
	return "", 0
}
