//go:build !plan9 && !wasip1 && !freebsd && !openbsd && !dragonfly

package soft

import "syscall"

const enodata = syscall.ENODATA
