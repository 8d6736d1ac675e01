// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package processors

import "time"

var started = time.Now()

// Time returns the time since the process started, because CPU time is not portable.
func Time() time.Duration { return time.Since(started) }
