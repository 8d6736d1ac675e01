package rdma

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// SendBatch is a chain of send work requests with their scatter/gather entries and inline bytes, in one piece of memory that
// the garbage collector does not own. Requests are appended by the method that is named after their operation, which returns
// the request for what else belongs to it:
//
//	b.Write(id, remoteAddress, rkey).SGE(address, length, lkey).Signaled()
//
// What a method does not set is zero. A batch can be posted any number of times, and patched in between by WR and SGEs; Reset
// makes it empty. When there is no room for a request, an entry or inline bytes, Err says so and so does every post, until Reset.
//
// A SendBatch is for one goroutine at a time. Nothing here allocates but NewSendBatch.
type SendBatch struct {
	wrs    []ibv.SendWR // capacity + 1: the last one takes what is appended beyond the capacity
	n      int
	kinds  []kind // what each work request was last built as
	sges   int    // entries for each work request
	inline int    // bytes for each work request
	sge    unsafe.Pointer
	bytes  unsafe.Pointer
	bad    *ibv.Ptr[ibv.SendWR]
	err    error

	mapping *runtime.Mapping
}

// kind is an opcode. Work of the same kind sets the same members, so the others are still zero.
type kind uint8

const (
	touched kind = 0xfe // by hand: anything may be set
	none    kind = 0xff // beyond the capacity
)

// NewSendBatch makes an empty batch for so many requests of so many entries each, with inline bytes for each request for data
// that Inline and TSO copy.
func NewSendBatch(requests, sges, inline int) (*SendBatch, error) {
	if requests <= 0 || sges < 0 || inline < 0 {
		return nil, fmt.Errorf("rdma: a batch of %d work requests with %d entries and %d inline bytes each: it needs at least one request, and no negative number", requests, sges, inline)
	}
	b := &SendBatch{sges: sges, inline: inline, kinds: make([]kind, requests+1)}
	var l layout
	wrs := l.add(requests+1, unsafe.Sizeof(ibv.SendWR{}))
	sge := l.add((requests+1)*sges, unsafe.Sizeof(ibv.SGE{}))
	bytes := l.add((requests+1)*inline, 1)
	bad := l.add(1, unsafe.Sizeof(uintptr(0)))
	m, err := l.mapMemory()
	if err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(m.Bytes()))
	b.mapping = m
	b.wrs = unsafe.Slice((*ibv.SendWR)(unsafe.Add(base, wrs)), requests+1)
	b.sge, b.bytes = unsafe.Add(base, sge), unsafe.Add(base, bytes)
	b.bad = (*ibv.Ptr[ibv.SendWR])(unsafe.Add(base, bad))
	for i := range b.wrs {
		b.kinds[i] = touched
	}
	b.kinds[requests] = none
	return b, nil
}

// Close unmaps the memory. The batch and what WR and SGEs returned must not be used any more. A second Close does nothing.
func (b *SendBatch) Close() error {
	b.wrs, b.kinds, b.n = nil, nil, 0
	return b.mapping.Close()
}

// Len is the number of requests.
func (b *SendBatch) Len() int { return b.n }

// Cap is the number of requests that there is room for.
func (b *SendBatch) Cap() int { return max(len(b.wrs)-1, 0) }

// Reset makes the batch empty. The requests of a former post may still be under way: devices have copied them.
func (b *SendBatch) Reset() { b.n, b.err = 0, nil }

// Err says what there was no room for since the last Reset, or nil.
func (b *SendBatch) Err() error { return b.err }

// WR is request i, to patch what changes from post to post; Next belongs to the batch. It is valid until Reset.
func (b *SendBatch) WR(i int) *ibv.SendWR {
	w := &b.wrs[:b.n][i]
	b.kinds[i] = touched
	return w
}

// SGEs is the entries of request i, to patch what changes from post to post. It is valid until Reset.
func (b *SendBatch) SGEs(i int) []ibv.SGE {
	w := &b.wrs[:b.n][i]
	return unsafe.Slice((*ibv.SGE)(unsafe.Add(b.sge, i*b.sges*16)), w.NumSGE)
}

// layout places arrays in one piece of memory, each aligned to a cache line.
type layout struct{ size int }

func (l *layout) add(n int, size uintptr) (offset int) {
	offset = l.size
	l.size += (n*int(size) + 63) &^ 63
	return offset
}

func (l *layout) mapMemory() (*runtime.Mapping, error) {
	return runtime.Map(l.size, runtime.MapOptions{})
}
