//go:build !race

package runtime

import (
	"sync/atomic"
	"unsafe"
)

// This processor makes stores visible in their order, and the compiler keeps that of stores and calls: a plain store releases.

func storeRelease(p *uint32, v uint32) { *p = v }

// StoreRelease32 stores v, so that who loads it sees what was written before. Two stores at once are not allowed. Unlike that of sync/atomic
// it has no order with loads that follow, which on some processors costs more than a call of C.
func StoreRelease32(p *atomic.Uint32, v uint32) { *(*uint32)(unsafe.Pointer(p)) = v }

// StoreRelease64 is StoreRelease32 of 64 bits.
func StoreRelease64(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
