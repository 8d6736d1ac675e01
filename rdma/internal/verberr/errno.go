// SPDX-License-Identifier: BSD-2-Clause

package verberr

import "syscall"

// Error numbers that checks give or look for, on every system.
const (
	EACCES          = syscall.EACCES
	EADDRINUSE      = syscall.EADDRINUSE
	EADDRNOTAVAIL   = syscall.EADDRNOTAVAIL
	EAGAIN          = syscall.EAGAIN
	EBUSY           = syscall.EBUSY
	ECONNREFUSED    = syscall.ECONNREFUSED
	ECONNRESET      = syscall.ECONNRESET
	EHOSTUNREACH    = syscall.EHOSTUNREACH
	EINVAL          = syscall.EINVAL
	EIO             = syscall.EIO
	EISCONN         = syscall.EISCONN
	ENETUNREACH     = syscall.ENETUNREACH
	ENODEV          = syscall.ENODEV
	ENOENT          = syscall.ENOENT
	ENOMEM          = syscall.ENOMEM
	ENOSYS          = syscall.ENOSYS
	EOPNOTSUPP      = syscall.EOPNOTSUPP
	EPERM           = syscall.EPERM
	EPIPE           = syscall.EPIPE
	EPROTO          = syscall.EPROTO
	EPROTONOSUPPORT = syscall.EPROTONOSUPPORT
	ETIMEDOUT       = syscall.ETIMEDOUT
)
