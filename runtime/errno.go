//go:build !plan9

package runtime

import "syscall"

// Errno is an error number of C.
type Errno = syscall.Errno

const (
	eopnotsupp = syscall.EOPNOTSUPP
	enosys     = syscall.ENOSYS
	eagain     = syscall.EAGAIN
	einval     = syscall.EINVAL
)
