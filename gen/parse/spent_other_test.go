// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package parse

import "time"

var started = time.Now()

// spent is the time since the tests began.
func spent() time.Duration { return time.Since(started) }
