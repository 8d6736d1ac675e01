// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package processors

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time returns the user and system CPU time of this process.
func Time() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
