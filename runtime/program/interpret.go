// SPDX-License-Identifier: BSD-2-Clause

package program

import "unsafe"

// interpret runs the steps of a program in Go: for a software backend, or on machines without the assembly.
func interpret(first *step, call func(fn uintptr, args *[MaxArgs]uint64) uint64) int32 {
	result := uint64(0)
	for s := first; ; s = at(s, 1) {
		switch s.op {
		case stepEnd:
			return int32(result)
		case stepCall:
			result = call(s.address, &s.args)
		case stepStore:
			store(s.address, s.width, s.args[0])
		case stepStoreResult:
			store(s.address, s.width, result)
		case stepCopy:
			store(s.address, s.width, load(uintptr(s.args[0]), s.width))
		case stepJumpResult:
			if int32(result) != 0 {
				s = at(first, int(s.target)-1)
			}
		case stepJumpMemory:
			if uint32(load(s.address, 4)) != 0 {
				s = at(first, int(s.target)-1)
			}
		case stepRequest:
			at := uintptr(s.args[0]) + uintptr(s.target)
			store(at, 8, s.args[RequestID])
			store(at+8, 4, s.args[RequestFlags])
			result = call(s.address, &s.args) // the function ignores the last two
		}
	}
}

// at returns the step that is n places after from.
func at(from *step, n int) *step {
	return (*step)(unsafe.Add(unsafe.Pointer(from), uintptr(n)*unsafe.Sizeof(step{})))
}

// pointer converts an address to a pointer without changing its bits. C would use the same address.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

func load(address uintptr, width uint8) uint64 {
	switch p := pointer(address); width {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	default:
		return *(*uint64)(p)
	}
}

func store(address uintptr, width uint8, value uint64) {
	switch p := pointer(address); width {
	case 1:
		*(*uint8)(p) = uint8(value)
	case 2:
		*(*uint16)(p) = uint16(value)
	case 4:
		*(*uint32)(p) = uint32(value)
	default:
		*(*uint64)(p) = value
	}
}
