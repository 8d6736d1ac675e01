// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package processors

import "time"

var started = time.Now()

// Time returns the time since the process started, since this system has no portable CPU time.
func Time() time.Duration { return time.Since(started) }
