//go:build !plan9 && !freebsd && !openbsd && !dragonfly

package soft

import "syscall"

const enodata = syscall.ENODATA
