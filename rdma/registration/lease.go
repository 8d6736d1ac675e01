// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Lease keeps memory registered, from [Cache.Get] to Release. Its address, length and keys are those of the slice that
// was asked for, whatever region serves it. Do not copy a Lease: go vet finds copies. One goroutine at a time may use
// it. A Lease that is dropped without Release stays registered.
type Lease struct {
	_      noCopy
	region *region
	start  uintptr
	length int
}

// noCopy lets go vet complain of copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Region returns the memory for work requests. It panics after Release.
func (l *Lease) Region() rdma.Region {
	return rdma.Region{Address: uint64(l.start), Length: uint64(l.length), LKey: l.region.lkey}
}

// SGE returns the entry of length bytes at offset, for a work request. Like slicing, it panics outside the memory.
func (l *Lease) SGE(offset uint64, length uint32) ibv.SGE { return l.Region().SGE(offset, length) }

// RKey returns the key that a peer needs to access the memory, in host byte order, beside its address, which an entry
// of SGE has. It stays valid until the memory is deregistered, perhaps long after Release; no peer should rely on it
// then.
func (l *Lease) RKey() uint32 { return l.region.rkey }

// Release ends the lease. No work request that uses the memory may be outstanding, here or at a peer. It may deregister
// memory, and blocks as long as that takes. A second Release does nothing.
func (l *Lease) Release() {
	if r := l.region; r != nil {
		l.region = nil
		r.cache.release(r)
	}
}
