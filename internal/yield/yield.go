// SPDX-License-Identifier: BSD-2-Clause

// Package yield lets other goroutines run.
package yield

import _ "unsafe" // for linkname

// Here lets other goroutines on the caller's processor run first. Unlike runtime.Gosched, it does not wake a thread for
// an idle processor; a goroutine that polls and yields would keep that thread busy. Go's runtime keeps the name and
// signature of the linked function for other users (go.dev/issue/67401).
//
//go:linkname Here runtime.goyield
func Here()
