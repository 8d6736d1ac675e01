// SPDX-License-Identifier: BSD-2-Clause

// Package watch tells whether memory of the process is still what it was: whether its pages have been unmapped, moved
// or given back since. A memory region keeps the pages that it was registered with, whatever becomes of the addresses.
//
// On Linux, userfaultfd(2) reports such changes. The thread that changes memory which is watched waits until the report
// has been read, some ten µs. No page is protected, so nothing else becomes slower, and no privilege is needed since
// Linux 5.11. A report may still be on its way when another thread has mapped the addresses again. [Watch.Same]
// therefore asks the kernel whether a change is under way: ioctls that change memory fail with EAGAIN then. As the
// kernel's documentation promises neither that nor the order of things, the first use tries both on a page of its own.
package watch

// Watch watches some memory, from [Memory] to Close.
type Watch struct {
	start, end uintptr // whole pages
	gone       bool    // guarded by the monitor's lock
	notify     func()
}

func overlap(start, end, otherStart, otherEnd uintptr) bool {
	return start < otherEnd && otherStart < end
}

// span is a range of addresses.
type span struct{ start, end uintptr }

// without returns spans without the addresses from start to end.
func without(spans []span, start, end uintptr) []span {
	var left []span
	for _, s := range spans {
		if !overlap(s.start, s.end, start, end) {
			left = append(left, s)
			continue
		}
		if s.start < start {
			left = append(left, span{s.start, start})
		}
		if end < s.end {
			left = append(left, span{end, s.end})
		}
	}
	return left
}
