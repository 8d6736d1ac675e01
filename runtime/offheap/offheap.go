// SPDX-License-Identifier: BSD-2-Clause

// Package offheap maps memory that the garbage collector does not manage.
package offheap

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Mapping is memory that the garbage collector does not manage: it never moves, is not scanned, and stays until Close.
// It holds work requests, completions and message buffers, which devices and C access at any time.
type Mapping struct {
	bytes  []byte
	closed atomic.Bool
}

// Options control where and how memory is mapped. The zero value is ordinary memory on any node.
type Options struct {
	// HugePages uses huge pages of the default size, and fails if none are free; the size is rounded up to them.
	HugePages bool
	// Node is the NUMA node plus 1: 0 means any node, 1 is node 0.
	Node int
}

// Map maps zeroed memory of at least size bytes, aligned to a page. Do not use it after Close. There is no finalizer: a
// Mapping without Close stays mapped.
func Map(size int, o Options) (*Mapping, error) {
	if size <= 0 {
		return nil, fmt.Errorf("goverbs: memory of %d bytes: the size must be positive", size)
	}
	b, err := mapMemory(size, o)
	if err != nil {
		return nil, fmt.Errorf("goverbs: mapping %d bytes: %w", size, err)
	}
	return &Mapping{bytes: b}, nil
}

// Bytes returns the memory. Its length is the requested size, rounded up to pages. After Close it is empty.
func (m *Mapping) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.bytes
}

// Address returns the address of the memory.
func (m *Mapping) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))) }

// Close unmaps the memory. No user and no registered region of it may remain. A second Close does nothing.
func (m *Mapping) Close() error {
	if m == nil || m.closed.Swap(true) {
		return nil
	}
	return unmapMemory(m.bytes)
}

// Retire is Close for memory to which stale pointers may remain. The addresses stay readable and writable as long as
// the Mapping is reachable. Retire releases the pages at once if the system supports it; it clears and keeps a few
// pages, for which a system call does not pay. Stale pointers read zeros from released or cleared pages.
func (m *Mapping) Retire() error {
	if m.closed.Swap(true) {
		return nil
	}
	runtime.AddCleanup(m, func(b []byte) { unmapMemory(b) }, m.bytes)
	if len(m.bytes) <= 4*pageSize() {
		clear(m.bytes)
		return nil
	}
	return discard(m.bytes)
}

func roundUp(size, unit int) int { return (size + unit - 1) / unit * unit }

func pageSize() int { return os.Getpagesize() }
