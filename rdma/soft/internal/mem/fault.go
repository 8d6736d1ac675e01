// SPDX-License-Identifier: BSD-2-Clause

package mem

import (
	"runtime/debug"
	"sync/atomic"
)

// FaultOf reports whether a panic was caused by an access to unmapped memory under debug.SetPanicOnFault.
func FaultOf(panicked any) bool {
	_, ok := panicked.(interface{ Addr() uintptr })
	return ok
}

// Try calls f and reports whether all memory that it accessed was mapped. Other panics propagate.
func Try(f func()) (ok bool) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if ok { // recover is slow
			return
		}
		OnlyFault(recover())
	}()
	f()
	return true
}

// TryLoad64 loads 8 bytes and reports whether the memory was mapped, like Try without a closure.
func TryLoad64(at uint64) (value uint64, ok bool) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if !ok {
			OnlyFault(recover())
		}
	}()
	return Load64(at), true
}

// OnlyFault panics again unless the recovered panic is a memory fault.
func OnlyFault(panicked any) {
	if panicked != nil && !FaultOf(panicked) {
		panic(panicked)
	}
}

const pageSize = 4096 // smallest page size of any system

// Touch reports whether a range can be read, or written. It leaves the memory unchanged.
func Touch(s Segment, write bool) bool {
	if s.Base == 0 || s.Length == 0 {
		return true
	}
	return Try(func() {
		last := s.Base + s.Length - 1
		for at := s.Base; at <= last && at >= s.Base; at = at&^(pageSize-1) + pageSize {
			touch(at&^3, write)
		}
	})
}

// TouchAll is Touch for reading a list.
func TouchAll(of []Segment) bool {
	for _, s := range of {
		if !Touch(s, false) {
			return false
		}
	}
	return true
}

// touch reads the word at an address, or writes its value back.
//
//go:norace
//go:nocheckptr
func touch(at uint64, write bool) {
	word := (*uint32)(Pointer(at))
	if write {
		atomic.AddUint32(word, 0)
		return
	}
	atomic.LoadUint32(word)
}
