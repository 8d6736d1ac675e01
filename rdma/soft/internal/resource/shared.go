// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// SRQ is a shared receive queue: basic, of an XRC domain, or with tag matching.
type SRQ struct {
	Uses   int // queue pairs
	Number uint32
	Kind   ibv.SRQType
	Recvs  *RecvQueue
	Domain *XRCDomain // of XRC
	CQ     *CQ        // of XRC and tag matching
	Tags   *Tags      // of tag matching
	Limit  uint32
	Low    func() // called when fewer receives than Limit are left
	Gone   bool   // destroyed
}

// Took checks the limit after a receive was taken.
func (s *SRQ) Took() {
	if s.Limit > 0 && s.Recvs.Posted-s.Recvs.Taken < s.Limit {
		s.Limit = 0
		s.Low()
	}
}

// TagHeader is the size of the header of a message with a tag.
const TagHeader = uint64(unsafe.Sizeof(ibv.TMH{}))

// Greatest returns the size, header included, of the largest message that fits into a receive now.
func (s *SRQ) Greatest() (n uint64) {
	for _, e := range s.Tags.Entries {
		n = max(n, Room(e.SGEs)+TagHeader)
	}
	return max(n, s.Recvs.Room())
}

// XRCDomain is an XRC domain of a device, in which receives are shared. It may have several handles.
type XRCDomain struct {
	Uses    int // queue pairs and shared receive queues
	Handles int
	PDs     map[*Domain]int // domains of the shared receive queues, whose keys the queue pairs accept
	File    string          // file that identifies the domain, or ""
}
