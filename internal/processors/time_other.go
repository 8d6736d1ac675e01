// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package processors

import "time"

var started = time.Now()

// Time is the time since the process began: other systems are not asked.
func Time() time.Duration { return time.Since(started) }
