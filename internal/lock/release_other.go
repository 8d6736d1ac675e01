// SPDX-License-Identifier: BSD-2-Clause

//go:build race || !amd64

package lock

import "sync/atomic"

func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// StoreRelease32 stores v with release semantics: a goroutine that loads v sees all earlier writes. Concurrent stores
// are not allowed. Unlike a store of sync/atomic, it is not ordered with later loads, which on some processors takes
// longer than calling C.
func StoreRelease32(p *atomic.Uint32, v uint32) { p.Store(v) }

// StoreRelease64 is StoreRelease32 for 64-bit values.
func StoreRelease64(p *atomic.Uint64, v uint64) { p.Store(v) }
