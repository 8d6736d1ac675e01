// SPDX-License-Identifier: BSD-2-Clause

// Package offheap maps memory that the garbage collector does not own.
package offheap

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Mapping is memory that the garbage collector does not own: it never moves, is not scanned, and stays until Close.
// Work requests, completions and message buffers live in it, because devices and C read and write them at any time.
type Mapping struct {
	bytes  []byte
	closed atomic.Bool
}

// Options say where and how memory is mapped. The zero value is plain memory on any node.
type Options struct {
	// use huge pages (of the system's default size) and fail when none are free; the size is rounded up to them
	HugePages bool
	// Node is the NUMA node of the memory, counted from 1: 0 means any node, 1 is node 0.
	Node int
}

// Map maps zeroed memory of at least size bytes, aligned to a page. Do not use it after Close. A Mapping that is
// dropped without Close stays mapped.
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

// Close unmaps the memory. Nothing may use it afterwards, and no device may have it registered. A second Close does
// nothing.
func (m *Mapping) Close() error {
	if m == nil || m.closed.Swap(true) {
		return nil
	}
	return unmapMemory(m.bytes)
}

// Retire is Close of memory that stale pointers may still lead to. It keeps the addresses readable and writable as long
// as the Mapping is reachable. It gives the pages back to the system at once where it can; a few, which are not worth a
// system call, it clears and keeps until then. Where pages are given back or cleared, stale pointers find zeros.
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
