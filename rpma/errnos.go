// SPDX-License-Identifier: BSD-2-Clause

//go:build !plan9

package rpma

import "syscall"

var errEINVAL, errEFAULT, errENOMEM error = syscall.EINVAL, syscall.EFAULT, syscall.ENOMEM
