// SPDX-License-Identifier: BSD-2-Clause

package errnos

import "github.com/goverbs/goverbs/runtime"

const (
	EPERM           runtime.Errno = 1
	ENOENT          runtime.Errno = 2
	EIO             runtime.Errno = 5
	EBADF           runtime.Errno = 9
	EAGAIN          runtime.Errno = 11
	ENOMEM          runtime.Errno = 12
	EFAULT          runtime.Errno = 14
	EBUSY           runtime.Errno = 16
	EINVAL          runtime.Errno = 22
	ENODATA         runtime.Errno = 61
	EOPNOTSUPP      runtime.Errno = 95
	EPROTONOSUPPORT runtime.Errno = 93
	ENOSYS          runtime.Errno = 38
	ENETUNREACH     runtime.Errno = 101
	ENODEV          runtime.Errno = 19
	EHOSTUNREACH    runtime.Errno = 113
	EISCONN         runtime.Errno = 106
	ETIMEDOUT       runtime.Errno = 110
	EADDRINUSE      runtime.Errno = 98
	EADDRNOTAVAIL   runtime.Errno = 99
	ECONNREFUSED    runtime.Errno = 111
	EACCES          runtime.Errno = 13
	EMSGSIZE        runtime.Errno = 90
	EAFNOSUPPORT    runtime.Errno = 97
	ENOBUFS         runtime.Errno = 105
)
