// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// SRQ is a shared receive queue: plain, of an XRC domain, or one that matches tags.
type SRQ struct {
	Uses   int // queue pairs
	number uint32
	kind   ibv.SRQType
	recvs  *resource.RecvQueue
	domain *XRCDomain     // of XRC
	cq     *CQ            // of XRC and tag matching
	tags   *resource.Tags // of tag matching
	limit  uint32
	low    func() // fewer receives than limit are left
	gone   bool   // destroyed
}

// took looks at the limit after a receive was taken.
func (s *SRQ) took() {
	if s.limit > 0 && s.recvs.Posted-s.recvs.Taken < s.limit {
		s.limit = 0
		s.low()
	}
}

const (
	tmhSize   = uint64(unsafe.Sizeof(ibv.TMH{}))
	rvhSize   = uint64(unsafe.Sizeof(ibv.RVH{}))
	rndvBytes = 64 // max_rndv_hdr_size
)

// greatest is how many bytes the greatest message has that finds room now, with its header.
func (s *SRQ) greatest() (n uint64) {
	for _, e := range s.tags.Entries {
		n = max(n, resource.Room(e.SGEs)+tmhSize)
	}
	return max(n, s.recvs.Room())
}

// XRCDomain is an XRC domain of a device, in which receives are shared. It may have several handles.
type XRCDomain struct {
	Uses    int // queue pairs and shared receive queues
	handles int
	PDs     map[*resource.Domain]int // of the shared receive queues: whose keys the queue pairs take
	file    string                   // that names it, or ""
}
