// SPDX-License-Identifier: BSD-2-Clause

package ticks

// source is Linux's name of the counter.
const source = "tsc"

// count reads the time stamp counter.
//
//go:noescape
func count() int64
