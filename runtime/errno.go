// SPDX-License-Identifier: BSD-2-Clause

//go:build !plan9

package runtime

import "syscall"

// Errno is a C error number.
type Errno = syscall.Errno

const (
	eopnotsupp = syscall.EOPNOTSUPP
	enosys     = syscall.ENOSYS
	eagain     = syscall.EAGAIN
	einval     = syscall.EINVAL
)
