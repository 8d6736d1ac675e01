//go:build !plan9 && !wasip1 && !freebsd && !openbsd && !dragonfly

package device

import "syscall"

const enodata = syscall.ENODATA
