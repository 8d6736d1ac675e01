// SPDX-License-Identifier: BSD-2-Clause

// Package yield lets other goroutines run.
package yield

import _ "unsafe" // for linkname

// Here lets other goroutines of the caller's processor go first, and wakes no thread, as runtime.Gosched does wherever
// a processor has nothing to do: one that polls and yields would keep that busy. Go's runtime keeps the name and the
// signature for others that use it like this (go.dev/issue/67401).
//
//go:linkname Here runtime.goyield
func Here()
