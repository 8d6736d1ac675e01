//go:build race || !amd64

package runtime

import "sync/atomic"

func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// StoreRelease32 stores v, so that who loads it sees what was written before. Two stores at once are not allowed. Unlike that of sync/atomic
// it has no order with loads that follow, which on some processors costs more than a call of C.
func StoreRelease32(p *atomic.Uint32, v uint32) { p.Store(v) }

// StoreRelease64 is StoreRelease32 of 64 bits.
func StoreRelease64(p *atomic.Uint64, v uint64) { p.Store(v) }
