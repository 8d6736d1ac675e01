// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// SendBatch is a chain of send work requests with their scatter/gather entries and inline bytes, in one piece of memory
// that the garbage collector does not own. A method named after an operation appends a request and returns it; methods
// of the request set everything else:
//
//	b.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// Fields that are not set are zero. A batch can be posted any number of times. Change fields between posts with WR and
// SGEs: this is the cheapest way to post work that differs little. Fill is the cheapest way to write lists of one shape
// anew. Reset empties the batch. If there is no room for a request, an entry or inline bytes, Err and every post say
// so, until Reset.
//
// A SendBatch is for one goroutine at a time. Only NewSendBatch and errors allocate.
type SendBatch struct {
	batch                // the first member
	wrs   []ibv.SendWR   // the places of batch
	base  unsafe.Pointer // wrs
	spare int            // cap
	// touched: members were set that the opcode does not tell of. Work of one opcode sets the same members each time,
	// so that a work request is cleared only when its opcode changes, or in Reset when it was touched.
	touched bool
	filled  int // number of requests that are as Fill left them
	inline  int // bytes of each work request
	bytes   unsafe.Pointer
	entries unsafe.Pointer // of the first work request; the next one's come behind
}

// NewSendBatch creates an empty batch with room for requests of a number of entries each, and with inline bytes in each
// request for the data that Inline and TSO copy.
func NewSendBatch(requests, sges, inline int) (*SendBatch, error) {
	if requests <= 0 || sges < 0 || inline < 0 {
		return nil, verberr.Invalid("NewSendBatch", "",
			"a batch of %d work requests with %d entries and %d inline bytes each: it "+
				"needs at least one request, and no negative number", requests, sges, inline)
	}
	b := &SendBatch{inline: inline}
	var l layout
	wrs := l.add(requests+1, 1, unsafe.Sizeof(ibv.SendWR{}))
	sge := l.add(requests+1, sges, unsafe.Sizeof(ibv.SGE{}))
	bytes := l.add(requests+1, inline, 1)
	bad := l.add(1, 1, unsafe.Sizeof(uintptr(0)))
	m, err := l.mapMemory()
	if err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(m.Bytes()))
	b.wrs = unsafe.Slice((*ibv.SendWR)(unsafe.Add(base, wrs)), requests+1)
	b.bytes, b.entries = unsafe.Add(base, bytes), unsafe.Add(base, sge)
	b.base, b.spare = unsafe.Pointer(&b.wrs[0]), requests
	b.batch = batch{size: unsafe.Sizeof(b.wrs[0]), places: requests + 1, end: nowhere, sges: sges, mapping: m}
	b.first, b.bad, b.linked = uintptr(b.base), (*uintptr)(unsafe.Add(base, bad)), nowhere
	b.link(uintptr(b.entries))
	b.settle()
	return b, nil
}

// Close releases the memory. Posts fail from then on, requests of the batch do nothing, and Fill panics. Do not use the
// results of WR, WRs, SGEs and Fill any more. A second Close does nothing.
func (b *SendBatch) Close() error {
	b.wrs, b.places, b.n, b.linked, b.end = nil, 0, 0, nowhere, nowhere
	b.base, b.spare, b.sges = unsafe.Pointer(new(ibv.SendWR)), 0, 0
	b.filled, b.closed = -1, true
	return b.mapping.Retire()
}

// Reset makes the batch empty. The requests of a former post may still be under way: the device has its own copies.
func (b *SendBatch) Reset() {
	if b.touched || b.n >= len(b.wrs) {
		b.clear()
	}
	b.n = 0
}

func (b *SendBatch) clear() {
	for i := range b.wrs[:min(b.n, len(b.wrs))] {
		w := &b.wrs[i]
		*w = ibv.SendWR{Next: w.Next, SGList: w.SGList}
	}
	b.touched, b.filled, b.lacks, b.err, b.home = false, 0, 0, nil, b.self
}

// Fill replaces the requests of the batch by n requests, and returns them and their entries to be written in place. In
// a loop it costs no more than the loop. Request i has as many entries k as the batch has room for: sges[i*k] and the
// next ones. A lower NumSGE leaves out the last ones. Next and SGList belong to the batch.
//
// The first Fill with n returns zeroed requests. The next ones return what was written last, so that a loop can write
// the same fields again, until Reset or a Fill with another n. If n is larger than the capacity, Fill panics, as
// slicing does, and of a closed batch.
func (b *SendBatch) Fill(n int) (wrs []ibv.SendWR, sges []ibv.SGE) {
	if b.filled != n || b.n != n {
		b.shape(n)
	}
	return b.wrs[:n:n], unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges)
}

// shape makes n requests that are zero, except for the fields that never change.
func (b *SendBatch) shape(n int) {
	if err := b.own(); err != nil || b.closed {
		panic(b.Err().Error())
	}
	room := len(b.wrs) - 1
	_ = b.wrs[:room:room][:n]
	b.clear()
	b.n = n
	b.clear()
	for i := range b.wrs[:n] {
		b.wrs[i].NumSGE = int32(b.sges)
	}
	clear(unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges))
	b.touched, b.filled = true, n
}

// WR is request i, to patch what changes from post to post. Next and SGList belong to the batch. It is valid until
// Reset.
func (b *SendBatch) WR(i int) *ibv.SendWR {
	b.touched = true
	return &b.wrs[:b.n][i]
}

// WRs returns all requests, to change fields in a loop between posts. Next and SGList belong to the batch. The slice is
// valid until the next request is appended.
func (b *SendBatch) WRs() []ibv.SendWR {
	b.touched = true
	return b.wrs[:b.n]
}

// SGEs returns the entries of request i, to change them between posts. The slice is valid until Reset.
func (b *SendBatch) SGEs(i int) []ibv.SGE {
	w := &b.wrs[:b.n][i]
	return entries(w.SGList, w.NumSGE)
}
