// SPDX-License-Identifier: BSD-2-Clause

//go:build wasip1 || freebsd || openbsd || dragonfly

package errnos

import "syscall"

const ENODATA = syscall.ENOENT // not defined on these systems
