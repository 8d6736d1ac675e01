// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package dropin

import (
	"os"
	"syscall"
)

// changesUser reports whether a program runs as a user or group other than this process's.
func changesUser(info os.FileInfo) bool {
	of, ok := info.Sys().(*syscall.Stat_t)
	return ok && (info.Mode()&os.ModeSetuid != 0 && int(of.Uid) != os.Geteuid() ||
		info.Mode()&os.ModeSetgid != 0 && int(of.Gid) != os.Getegid())
}
