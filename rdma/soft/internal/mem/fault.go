// SPDX-License-Identifier: BSD-2-Clause

package mem

import (
	"runtime/debug"
	"sync/atomic"
)

// FaultOf says whether a panic is that of an access to memory that is not there, which debug.SetPanicOnFault makes of
// one.
func FaultOf(panicked any) bool {
	_, ok := panicked.(interface{ Addr() uintptr })
	return ok
}

// Try calls a function, and says whether all memory was there that it used. Other panics go on.
func Try(f func()) (ok bool) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if ok { // recover costs more than the rest
			return
		}
		OnlyFault(recover())
	}()
	f()
	return true
}

// TryLoad64 loads 8 bytes, and says whether the memory was there. It is Try, without a function to call.
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

// OnlyFault lets a recovered panic go on unless it is one of memory that is not there.
func OnlyFault(panicked any) {
	if panicked != nil && !FaultOf(panicked) {
		panic(panicked)
	}
}

const pageSize = 4096 // the smallest that there is

// Touch says whether all of a range can be read, or written. It leaves the memory as it is.
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

// TouchAll is Touch of a list that is read.
func TouchAll(of []Segment) bool {
	for _, s := range of {
		if !Touch(s, false) {
			return false
		}
	}
	return true
}

// touch reads the word at an address, or writes to it what is there.
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
