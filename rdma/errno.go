//go:build !plan9

package rdma

import "syscall"

const (
	einval     = syscall.EINVAL
	enomem     = syscall.ENOMEM
	eio        = syscall.EIO
	enoent     = syscall.ENOENT
	ebusy      = syscall.EBUSY
	eagain     = syscall.EAGAIN
	eopnotsupp = syscall.EOPNOTSUPP
	enosys     = syscall.ENOSYS
)
