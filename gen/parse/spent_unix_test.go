// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package parse

import (
	"time"

	"golang.org/x/sys/unix"
)

// spent is the processor time of this process, which does not count the time that others have the processors.
func spent() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
