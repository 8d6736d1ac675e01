//go:build !plan9

package device

import "syscall"

const (
	eperm           = syscall.EPERM
	enoent          = syscall.ENOENT
	eio             = syscall.EIO
	eagain          = syscall.EAGAIN
	enomem          = syscall.ENOMEM
	efault          = syscall.EFAULT
	ebusy           = syscall.EBUSY
	einval          = syscall.EINVAL
	eopnotsupp      = syscall.EOPNOTSUPP
	eprotonosupport = syscall.EPROTONOSUPPORT
	enosys          = syscall.ENOSYS
	enodev          = syscall.ENODEV
	eisconn         = syscall.EISCONN
	etimedout       = syscall.ETIMEDOUT
	eaddrinuse      = syscall.EADDRINUSE
	eaddrnotavail   = syscall.EADDRNOTAVAIL
	econnrefused    = syscall.ECONNREFUSED
)
