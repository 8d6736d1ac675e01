// SPDX-License-Identifier: BSD-2-Clause

// Package watch detects whether pages of the process's memory have been unmapped, moved or released. A memory region
// keeps the pages that it was registered with, regardless of later mappings at its addresses.
//
// On Linux, userfaultfd(2) reports such changes. A thread that changes watched memory waits until the report has been
// read, about 10 µs. No page is protected, so accesses do not become slower, and no privilege is needed since Linux
// 5.11. A report may still be unread when another thread has already mapped the addresses again. Therefore [Watch.Same]
// asks the kernel whether a change is pending: ioctls that change memory then fail with EAGAIN. The kernel's
// documentation guarantees neither this nor the order, so the first use tests both on its own page.
package watch

// Watch watches some memory, from [Memory] to Close.
type Watch struct {
	start, end uintptr // page-aligned
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
