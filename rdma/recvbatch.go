// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// RecvBatch is a chain of receive work requests with their scatter entries, in one piece of memory that the garbage
// collector does not own, for a [RecvQueue] of a queue pair or a shared one:
//
//	b.Recv(id).SGE(address, length, lkey)
//
// Everything else is as with [SendBatch].
type RecvBatch struct {
	batch              // the first member
	wrs   []ibv.RecvWR // the places of batch
}

// RecvRequest is a work request in a [RecvBatch]. It is valid until Reset.
type RecvRequest struct {
	w *ibv.RecvWR
	b *RecvBatch
}

// NewRecvBatch creates an empty batch of up to requests work requests, each with up to sges entries.
func NewRecvBatch(requests, sges int) (*RecvBatch, error) {
	b := new(RecvBatch)
	var err error
	if b.wrs, _, err = mapBatch[ibv.RecvWR](&b.batch, "NewRecvBatch", requests, sges, 0); err != nil {
		return nil, err
	}
	b.link()
	return b, nil
}

// Close releases the memory. Afterwards posts fail, and appending has no effect. Do not use results of WR, WRs and SGEs
// after Close. A second Close does nothing.
func (b *RecvBatch) Close() error {
	// a full batch, so that Recv does not write to the unmapped memory
	b.wrs, b.allocated, b.n, b.linked, b.end = make([]ibv.RecvWR, 1), 1, 1, unlinked, unlinked
	b.sges, b.closed = 0, true
	return b.mapping.Retire()
}

// WR returns request i, like [SendBatch.WR].
func (b *RecvBatch) WR(i int) *ibv.RecvWR { return &b.wrs[:b.n][i] }

// WRs returns all requests, like [SendBatch.WRs].
func (b *RecvBatch) WRs() []ibv.RecvWR { return b.wrs[:b.n] }

// SGEs returns the entries of request i, like [SendBatch.SGEs].
func (b *RecvBatch) SGEs(i int) []ibv.SGE {
	w := b.WR(i)
	return entries(w.SGList, w.NumSGE)
}

// Recv appends a receive work request.
func (b *RecvBatch) Recv(id uint64) RecvRequest {
	i := b.n
	b.n = i + 1
	w := &b.wrs[min(i, len(b.wrs)-1)]
	w.WRID, w.NumSGE = id, 0
	return RecvRequest{w, b}
}

// SGE appends an entry: length bytes at an address, under a local key.
func (r RecvRequest) SGE(address uint64, length, lkey uint32) RecvRequest {
	n := int(r.w.NumSGE)
	if n >= r.b.sges {
		r.b.overflowed, r.b.linked = true, unlinked
		return r
	}
	s := (*ibv.SGE)(unsafe.Add(unsafe.Pointer(r.w.SGList.Deref()), n*sizeofSGE))
	s.Addr, s.Length, s.LKey = address, length, lkey
	r.w.NumSGE = int32(n + 1)
	return r
}

// Add appends an entry, as returned by [Region.SGE].
func (r RecvRequest) Add(s ibv.SGE) RecvRequest { return r.SGE(s.Addr, s.Length, s.LKey) }

// Index returns the request's index in its batch.
func (r RecvRequest) Index() int {
	return int((uintptr(unsafe.Pointer(r.w)) - r.b.first) / unsafe.Sizeof(ibv.RecvWR{}))
}
