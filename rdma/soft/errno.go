//go:build !plan9

package soft

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
)
