package wq

import (
	"fmt"
	"math"
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
// What is not set is zero. A batch can be posted any number of times, and patched in between by WR and SGEs: the cheapest way to post
// work that differs little. Fill is the cheapest way to write lists of one shape anew. Reset makes the batch empty. When there is no room
// for a request, an entry or inline bytes, Err says so and so does every post, until Reset.
//
// A SendBatch is for one goroutine at a time. Nothing here allocates but NewSendBatch, and errors.
type SendBatch struct {
	chain runtime.Chain  // the first member. Its Len: appended, also beyond the capacity
	wrs   []ibv.SendWR   // capacity + 1: the last one takes what is appended beyond the capacity
	base  unsafe.Pointer // wrs
	spare int            // cap
	end   int            // the chain ends behind so many: Next of that one is NULL, every other points on
	sges  int            // room of each work request
	// touched: members were set that the opcode does not tell of. Work of one opcode sets the same members each time, so that a
	// work request is cleared only when its opcode changes, or in Reset when it was touched.
	touched bool
	filled  int // so many are as Fill left them, for who writes all that they hold
	lacks   lack
	inline  int // bytes of each work request
	bytes   unsafe.Pointer
	entries unsafe.Pointer // of the first work request; the next one's come behind
	closed  bool
	posted  int   // what the next post takes when nothing is in its way, or the last one that failed took
	err     error // of lackInline

	mapping *runtime.Mapping
}

// nowhere does a chain end that was never posted.
const nowhere = -1

// lack is what there was no room for.
type lack uint8

const (
	lackEntry lack = 1 << iota
	lackInline
)

// NewSendBatch makes an empty batch for so many requests of so many entries each, with inline bytes for each request for data
// that Inline and TSO copy.
func NewSendBatch(requests, sges, inline int) (*SendBatch, error) {
	if requests <= 0 || sges < 0 || inline < 0 {
		return nil, fmt.Errorf("rdma: a batch of %d work requests with %d entries and %d inline bytes each: it needs at least one request, and no negative number", requests, sges, inline)
	}
	b := &SendBatch{sges: sges, inline: inline, end: nowhere}
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
	b.mapping = m
	b.wrs = unsafe.Slice((*ibv.SendWR)(unsafe.Add(base, wrs)), requests+1)
	b.bytes, b.entries = unsafe.Add(base, bytes), unsafe.Add(base, sge)
	b.chain = runtime.Chain{First: uintptr(unsafe.Pointer(&b.wrs[0])), Bad: (*uintptr)(unsafe.Add(base, bad)), Closed: nowhere}
	b.base, b.spare = unsafe.Pointer(&b.wrs[0]), requests
	for i := range b.wrs {
		if i < requests {
			b.wrs[i].Next = ibv.PtrTo(&b.wrs[i+1])
		}
		b.wrs[i].SGList = ibv.Ptr[ibv.SGE](uintptr(base) + uintptr(sge+i*sges*sizeofSGE))
	}
	return b, nil
}

const sizeofSGE = int(unsafe.Sizeof(ibv.SGE{}))

// Close unmaps the memory. The batch and what WR and SGEs returned must not be used any more. A second Close does nothing.
func (b *SendBatch) Close() error {
	b.wrs, b.chain.Len, b.chain.Closed, b.end = nil, 0, nowhere, nowhere
	b.base, b.spare, b.sges = unsafe.Pointer(new(ibv.SendWR)), 0, 0
	b.closed = true
	return b.mapping.Close()
}

// Len is the number of requests.
func (b *SendBatch) Len() int { return min(b.chain.Len, b.Cap()) }

// Cap is the number of requests that there is room for.
func (b *SendBatch) Cap() int { return max(len(b.wrs)-1, 0) }

// Reset makes the batch empty. The requests of a former post may still be under way: the device has its own copies.
func (b *SendBatch) Reset() {
	if b.touched || b.chain.Len >= len(b.wrs) {
		b.clear()
	}
	b.chain.Len = 0
}

func (b *SendBatch) clear() {
	for i := range b.wrs[:min(b.chain.Len, len(b.wrs))] {
		w := &b.wrs[i]
		*w = ibv.SendWR{Next: w.Next, SGList: w.SGList}
	}
	b.touched, b.filled, b.lacks, b.err = false, 0, 0, nil
}

// Fill makes the batch n requests instead of what it holds, and gives them and their entries to be written in place: in a loop, it costs
// what the loop costs. Request i has all the entries that the batch was made for, k of them: sges[i*k] and those behind it; a NumSGE
// that is lower leaves out the last ones. Next and SGList belong to the batch.
//
// The first Fill of so many requests finds them zero. The next ones find what was written last, for a loop to write the same members
// again, until Reset or another number of requests. More requests than there is room for panic, as slicing does.
func (b *SendBatch) Fill(n int) (wrs []ibv.SendWR, sges []ibv.SGE) {
	if b.filled != n || b.chain.Len != n {
		b.shape(n)
	}
	return b.wrs[:n:n], unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges)
}

// shape makes n requests that are zero, but for what is theirs always.
func (b *SendBatch) shape(n int) {
	room := len(b.wrs) - 1
	_ = b.wrs[:room:room][:n]
	b.clear()
	b.chain.Len = n
	b.clear()
	for i := range b.wrs[:n] {
		b.wrs[i].NumSGE = int32(b.sges)
	}
	clear(unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges))
	b.touched, b.filled = true, n
}

// Err says what there was no room for since the last Reset, or nil.
func (b *SendBatch) Err() error {
	if b.closed {
		return errBatchClosed
	}
	return batchErr(b.chain.Len, b.Cap(), b.sges, b.lacks, b.err)
}

var errBatchClosed = fmt.Errorf("rdma: the batch is %w", ErrClosed)

func batchErr(n, capacity, sges int, l lack, inline error) error {
	switch {
	case n > capacity:
		return fmt.Errorf("rdma: the batch is full: it was made for %d work requests, not for %d", capacity, n)
	case l&lackEntry != 0:
		return fmt.Errorf("rdma: no room for another entry: the batch was made for %d in each work request", sges)
	}
	return inline
}

// WR is request i, to patch what changes from post to post. Next and SGList belong to the batch. It is valid until Reset.
func (b *SendBatch) WR(i int) *ibv.SendWR {
	b.touched = true
	return &b.wrs[:b.chain.Len][i]
}

// WRs is all requests, to patch what changes from post to post in a loop. Next and SGList belong to the batch. It is valid until the
// next request is appended.
func (b *SendBatch) WRs() []ibv.SendWR {
	b.touched = true
	return b.wrs[:b.chain.Len]
}

// SGEs is the entries of request i, to patch what changes from post to post. It is valid until Reset.
func (b *SendBatch) SGEs(i int) []ibv.SGE {
	w := &b.wrs[:b.chain.Len][i]
	return entries(w.SGList, w.NumSGE)
}

// entries is a list of SGEs. It is written so that it costs one comparison.
func entries(list ibv.Ptr[ibv.SGE], n int32) []ibv.SGE {
	const many = 1 << 20
	return (*[many]ibv.SGE)(unsafe.Pointer(list.Deref()))[:n:n]
}

// endAt ends the chain behind request to - 1. A range that is not inside the batch panics.
func (b *SendBatch) endAt(from, to int) {
	last := &b.wrs[:b.chain.Len:b.chain.Len][from:to][to-from-1]
	if b.end != to {
		if b.end != nowhere {
			b.wrs[b.end-1].Next = ibv.PtrTo(&b.wrs[b.end])
		}
		last.Next = 0
	}
	b.end, b.chain.Closed, b.posted = to, to, to
}

// took keeps how many requests a post took. When those were not all, the next post has to look at the batch.
func (b *SendBatch) took(n int) {
	if b.posted = n; n != b.chain.Closed {
		b.chain.Closed = nowhere
	}
}

// layout places arrays in one piece of memory, each aligned to a cache line.
type layout struct {
	size    int
	tooMuch bool // more than can be counted
}

// add places n times each items of a size.
func (l *layout) add(n, each int, size uintptr) (offset int) {
	offset = l.size
	if room := (math.MaxInt - 63 - offset) / int(size); n < 0 || each > 0 && n > room/each {
		l.tooMuch = true
		return offset
	}
	l.size += (n*each*int(size) + 63) &^ 63
	return offset
}

func (l *layout) mapMemory() (*runtime.Mapping, error) {
	if l.tooMuch {
		return nil, fmt.Errorf("rdma: so much memory cannot be had: %w", enomem)
	}
	return runtime.Map(l.size, runtime.MapOptions{})
}
