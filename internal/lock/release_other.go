// SPDX-License-Identifier: BSD-2-Clause

//go:build race || !amd64

package lock

import "sync/atomic"

func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// StoreRelease32 stores v with release semantics: a goroutine that loads v sees everything that was written before. Two
// goroutines must not store at once. Unlike a store of sync/atomic, it is not ordered with later loads; such an order
// costs more than a call of C on some processors.
func StoreRelease32(p *atomic.Uint32, v uint32) { p.Store(v) }

// StoreRelease64 is StoreRelease32 for 64 bits.
func StoreRelease64(p *atomic.Uint64, v uint64) { p.Store(v) }
