package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// RecvBatch is a chain of receive work requests with their scatter entries, in one piece of memory that the garbage collector does
// not own, for a [RecvQueue] or a [SharedRecvQueue]:
//
//	b.Recv(id).SGE(address, length, lkey)
//
// The rest is as with [SendBatch].
type RecvBatch struct {
	wrs  []ibv.RecvWR // capacity + 1: the last one takes what is appended beyond the capacity
	n    int
	sges int
	sge  unsafe.Pointer
	bad  *ibv.Ptr[ibv.RecvWR]
	err  error

	mapping *runtime.Mapping
}

// RecvRequest is a work request that was appended to a [RecvBatch]. It is valid until Reset.
type RecvRequest struct {
	wr *ibv.RecvWR
	b  *RecvBatch
}

// NewRecvBatch makes an empty batch for so many requests of so many entries each.
func NewRecvBatch(requests, sges int) (*RecvBatch, error) {
	if requests <= 0 || sges < 0 {
		return nil, fmt.Errorf("rdma: a batch of %d work requests with %d entries each: it needs at least one request, and no negative number", requests, sges)
	}
	var l layout
	wrs := l.add(requests+1, unsafe.Sizeof(ibv.RecvWR{}))
	sge := l.add((requests+1)*sges, unsafe.Sizeof(ibv.SGE{}))
	bad := l.add(1, unsafe.Sizeof(uintptr(0)))
	m, err := l.mapMemory()
	if err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(m.Bytes()))
	b := &RecvBatch{
		wrs:  unsafe.Slice((*ibv.RecvWR)(unsafe.Add(base, wrs)), requests+1),
		sges: sges, sge: unsafe.Add(base, sge),
		bad:     (*ibv.Ptr[ibv.RecvWR])(unsafe.Add(base, bad)),
		mapping: m,
	}
	return b, nil
}

// Close unmaps the memory. The batch and what WR and SGEs returned must not be used any more. A second Close does nothing.
func (b *RecvBatch) Close() error {
	b.wrs, b.n = nil, 0
	return b.mapping.Close()
}

// Len is the number of requests.
func (b *RecvBatch) Len() int { return b.n }

// Cap is the number of requests that there is room for.
func (b *RecvBatch) Cap() int { return max(len(b.wrs)-1, 0) }

// Reset makes the batch empty.
func (b *RecvBatch) Reset() { b.n, b.err = 0, nil }

// Err says what there was no room for since the last Reset, or nil.
func (b *RecvBatch) Err() error { return b.err }

// WR is request i, to patch what changes from post to post; Next belongs to the batch. It is valid until Reset.
func (b *RecvBatch) WR(i int) *ibv.RecvWR { return &b.wrs[:b.n][i] }

// SGEs is the entries of request i, to patch what changes from post to post. It is valid until Reset.
func (b *RecvBatch) SGEs(i int) []ibv.SGE {
	w := &b.wrs[:b.n][i]
	return unsafe.Slice((*ibv.SGE)(unsafe.Add(b.sge, i*b.sges*16)), w.NumSGE)
}

// Recv appends a receive work request.
func (b *RecvBatch) Recv(id uint64) RecvRequest {
	i := b.n
	if i == len(b.wrs)-1 {
		if b.err == nil {
			b.err = fmt.Errorf("rdma: the batch is full: it was made for %d work requests", b.Cap())
		}
		b.wrs[i].NumSGE = 0
		return RecvRequest{&b.wrs[i], b}
	}
	b.n = i + 1
	w := &b.wrs[i]
	w.WRID, w.NumSGE = id, 0
	w.Next, w.SGList = ibv.PtrTo(&b.wrs[i+1]), ibv.Ptr[ibv.SGE](uintptr(b.sge)+uintptr(i*b.sges*16))
	return RecvRequest{w, b}
}

// SGE appends an entry: length bytes at an address, under a local key.
func (r RecvRequest) SGE(address uint64, length, lkey uint32) RecvRequest {
	n := r.wr.NumSGE
	if int(n) >= r.b.sges {
		if r.b.err == nil {
			r.b.err = fmt.Errorf("rdma: WR %d: no room for another entry: the batch was made for %d entries in each work request", r.Index(), r.b.sges)
		}
		return r
	}
	s := (*ibv.SGE)(unsafe.Add(r.b.sge, (r.Index()*r.b.sges+int(n))*16))
	s.Addr, s.Length, s.LKey = address, length, lkey
	r.wr.NumSGE = n + 1
	return r
}

// Index is the place of the request in its batch.
func (r RecvRequest) Index() int {
	return int((uintptr(unsafe.Pointer(r.wr)) - uintptr(unsafe.Pointer(unsafe.SliceData(r.b.wrs)))) / unsafe.Sizeof(ibv.RecvWR{}))
}
