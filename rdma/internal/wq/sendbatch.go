package wq

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
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
	chain runtime.Chain  // the first field. Its Len counts all appended requests, also those beyond the capacity
	wrs   []ibv.SendWR   // capacity + 1: the last one takes requests beyond the capacity
	base  unsafe.Pointer // address of wrs
	spare int            // cap
	end   int            // the chain ends after this many requests: Next of the last one is NULL, every other one points on
	sges  int            // number of entries of each work request
	// touched says that fields were set that the opcode does not use. Requests with one opcode set the same fields each
	// time, so a request is cleared only if its opcode changes, or in Reset if it was touched.
	touched bool
	filled  int // number of requests that are as Fill left them
	lacks   lack
	inline  int // bytes of each work request
	bytes   unsafe.Pointer
	entries unsafe.Pointer // entries of the first work request; those of the next ones follow
	closed  bool
	posted  int   // number of requests that the next post takes if it succeeds, or that a failed one took
	err     error // from lacksInline

	mapping *runtime.Mapping
}

// nowhere is the end of a chain that was never posted.
const nowhere = -1

// lack says what the batch had no room for.
type lack uint8

const (
	lackEntry lack = 1 << iota
	lackInline
)

// NewSendBatch creates an empty batch with room for requests of a number of entries each, and with inline bytes in each
// request for the data that Inline and TSO copy.
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

// Close unmaps the memory. Do not use the batch or a result of WR and SGEs afterwards. A second Close does nothing.
func (b *SendBatch) Close() error {
	b.wrs, b.chain.Len, b.chain.Closed, b.end = nil, 0, nowhere, nowhere
	b.base, b.spare, b.sges = unsafe.Pointer(new(ibv.SendWR)), 0, 0
	b.closed = true
	return b.mapping.Close()
}

// Len is the number of requests.
func (b *SendBatch) Len() int { return min(b.chain.Len, b.Cap()) }

// Cap is the largest number of requests.
func (b *SendBatch) Cap() int { return max(len(b.wrs)-1, 0) }

// Reset empties the batch. Requests of an earlier post may still be under way: the device has its own copies.
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

// Fill replaces the requests of the batch by n requests, and returns them and their entries to be written in place. In
// a loop it costs no more than the loop. Request i has as many entries k as the batch has room for: sges[i*k] and the
// next ones. A lower NumSGE leaves out the last ones. Next and SGList belong to the batch.
//
// The first Fill with n returns zeroed requests. The next ones return what was written last, so that a loop can write
// the same fields again, until Reset or a Fill with another n. If n is larger than the capacity, Fill panics, as
// slicing does.
func (b *SendBatch) Fill(n int) (wrs []ibv.SendWR, sges []ibv.SGE) {
	if b.filled != n || b.chain.Len != n {
		b.shape(n)
	}
	return b.wrs[:n:n], unsafe.Slice((*ibv.SGE)(b.entries), n*b.sges)
}

// shape makes n requests that are zero, except for the fields that never change.
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

// Err says what the batch had no room for since the last Reset, or returns nil.
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

// WR returns request i, to change fields between posts. Next and SGList belong to the batch. It is valid until Reset.
func (b *SendBatch) WR(i int) *ibv.SendWR {
	b.touched = true
	return &b.wrs[:b.chain.Len][i]
}

// WRs returns all requests, to change fields in a loop between posts. Next and SGList belong to the batch. The slice is
// valid until the next request is appended.
func (b *SendBatch) WRs() []ibv.SendWR {
	b.touched = true
	return b.wrs[:b.chain.Len]
}

// SGEs returns the entries of request i, to change them between posts. The slice is valid until Reset.
func (b *SendBatch) SGEs(i int) []ibv.SGE {
	w := &b.wrs[:b.chain.Len][i]
	return entries(w.SGList, w.NumSGE)
}

// entries returns a list of SGEs with a single comparison.
func entries(list ibv.Ptr[ibv.SGE], n int32) []ibv.SGE {
	const many = 1 << 20
	return (*[many]ibv.SGE)(unsafe.Pointer(list.Deref()))[:n:n]
}

// endAt ends the chain after request to - 1. It panics if a range is not inside the batch.
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

// took records how many requests a post took. If a post did not take all, the next post has to prepare the chain again.
func (b *SendBatch) took(n int) {
	if b.posted = n; n != b.chain.Closed {
		b.chain.Closed = nowhere
	}
}

// layout places arrays in one piece of memory, each aligned to a cache line.
type layout struct {
	size    int
	tooMuch bool // larger than an int
}

// add places n arrays of each items of a size.
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
