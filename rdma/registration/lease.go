// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Lease keeps memory registered, from [Cache.Get] to Release. Its address, length and keys are those of the requested
// slice, even if a larger region serves it. It must not be copied, which go vet checks, and is not safe for concurrent
// use. There is no finalizer: memory stays registered until Release.
type Lease struct {
	_      noCopy
	region *region
	start  uintptr
	length int
}

// noCopy makes go vet report copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Region returns the memory for work requests. It panics after Release.
func (l *Lease) Region() rdma.Region {
	return rdma.Region{Address: uint64(l.start), Length: uint64(l.length), LKey: l.region.lkey}
}

// SGE returns the entry for length bytes at offset, for a work request. Like slicing, it panics outside the memory.
func (l *Lease) SGE(offset uint64, length uint32) ibv.SGE { return l.Region().SGE(offset, length) }

// RKey returns the key with which a peer can access the memory, in host byte order. The peer also needs the address,
// which the result of SGE contains. The key stays valid until the memory is deregistered, which may be long after
// Release; do not rely on that.
func (l *Lease) RKey() uint32 { return l.region.rkey }

// Release ends the lease. No work request that uses the memory may be outstanding, on this side or on a peer's. Release
// blocks if it deregisters memory. A second Release does nothing.
func (l *Lease) Release() {
	if r := l.region; r != nil {
		l.region = nil
		r.cache.release(r)
	}
}
