// SPDX-License-Identifier: BSD-2-Clause

// Package errnos has the numbers of errors that the software device answers with, on systems that lack some, too.
package errnos

import "syscall"

const (
	EPERM           = syscall.EPERM
	ENOENT          = syscall.ENOENT
	EIO             = syscall.EIO
	EBADF           = syscall.EBADF
	EAGAIN          = syscall.EAGAIN
	ENOMEM          = syscall.ENOMEM
	EFAULT          = syscall.EFAULT
	EBUSY           = syscall.EBUSY
	EINVAL          = syscall.EINVAL
	EOPNOTSUPP      = syscall.EOPNOTSUPP
	EPROTONOSUPPORT = syscall.EPROTONOSUPPORT
	ENOSYS          = syscall.ENOSYS
	ENETUNREACH     = syscall.ENETUNREACH
	ENODEV          = syscall.ENODEV
	EHOSTUNREACH    = syscall.EHOSTUNREACH
	EISCONN         = syscall.EISCONN
	ETIMEDOUT       = syscall.ETIMEDOUT
	EADDRINUSE      = syscall.EADDRINUSE
	EADDRNOTAVAIL   = syscall.EADDRNOTAVAIL
	ECONNREFUSED    = syscall.ECONNREFUSED
	EACCES          = syscall.EACCES
	EMSGSIZE        = syscall.EMSGSIZE
	EAFNOSUPPORT    = syscall.EAFNOSUPPORT
	ENOBUFS         = syscall.ENOBUFS
)
