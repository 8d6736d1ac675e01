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

const pageSize = 4096 // the smallest that there is

// Touch says whether all of a range can be read, or written. It leaves the memory as it is.
func Touch(s Segment, write bool) (ok bool) {
	if s.Base == 0 || s.Length == 0 {
		return true
	}
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if e := recover(); e != nil && !FaultOf(e) {
			panic(e)
		}
	}()
	last := s.Base + s.Length - 1
	for at := s.Base; at <= last && at >= s.Base; at = at&^(pageSize-1) + pageSize {
		touch(at&^3, write)
	}
	return true
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
