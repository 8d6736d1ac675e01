//go:build wasip1 || freebsd || openbsd || dragonfly

package device

import "syscall"

const enodata = syscall.ENOENT // these systems have no number of that name
