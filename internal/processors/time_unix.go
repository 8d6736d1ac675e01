// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package processors

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is what this process has used of the processors, for itself and in the kernel. What others use does not count.
func Time() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
