// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package perf

import (
	"os"
	"syscall"
)

// foreign reports whether a file belongs to a user other than this one and root.
func foreign(info os.FileInfo) bool {
	of, ok := info.Sys().(*syscall.Stat_t)
	return ok && of.Uid != 0 && int(of.Uid) != os.Geteuid()
}
