package rdma

import "github.com/goverbs/goverbs/runtime"

const (
	einval     runtime.Errno = 22
	enomem     runtime.Errno = 12
	eio        runtime.Errno = 5
	enoent     runtime.Errno = 2
	ebusy      runtime.Errno = 16
	eagain     runtime.Errno = 11
	eopnotsupp runtime.Errno = 95
	enosys     runtime.Errno = 38
)
