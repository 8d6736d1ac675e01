// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

// Package stack reserves space on goroutine stacks for the signal handlers of C programs.
package stack

// Reserve makes sure that the goroutine's stack has 256 KiB below the caller's frame. A handler that a program
// installed without SA_ONSTACK runs on the stack that it interrupts. While a thread of the program is in a call to Go,
// that is a goroutine's stack of a few KiB, and the handler would overwrite other memory of Go. Stacks keep their size
// only if they do not shrink (GODEBUG=gcshrinkstackoff=1). If there is enough space, Reserve costs a comparison.
func Reserve()
