// SPDX-License-Identifier: BSD-2-Clause

package verberr

import "github.com/goverbs/goverbs/runtime"

// Those of Linux: Plan 9 has no numbers.
const (
	EACCES          runtime.Errno = 13
	EADDRINUSE      runtime.Errno = 98
	EADDRNOTAVAIL   runtime.Errno = 99
	EAGAIN          runtime.Errno = 11
	EBUSY           runtime.Errno = 16
	ECONNREFUSED    runtime.Errno = 111
	ECONNRESET      runtime.Errno = 104
	EHOSTUNREACH    runtime.Errno = 113
	EINVAL          runtime.Errno = 22
	EIO             runtime.Errno = 5
	EISCONN         runtime.Errno = 106
	ENETUNREACH     runtime.Errno = 101
	ENODEV          runtime.Errno = 19
	ENOENT          runtime.Errno = 2
	ENOMEM          runtime.Errno = 12
	ENOSYS          runtime.Errno = 38
	EOPNOTSUPP      runtime.Errno = 95
	EPERM           runtime.Errno = 1
	EPIPE           runtime.Errno = 32
	EPROTO          runtime.Errno = 71
	EPROTONOSUPPORT runtime.Errno = 93
	ETIMEDOUT       runtime.Errno = 110
)
