// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"math"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// batch is the first field of SendBatch, RecvBatch and TagBatch and holds what they share.
type batch struct {
	first uintptr  // address of the first work request
	bad   *uintptr // bad_wr of the call; outside Go's heap
	n     int      // appended requests, including those beyond the capacity
	// linked is the number of requests in the chain of next pointers. If it differs from n, a post links again.
	linked int
	// guard is self, or the address of the last request for which UD was called, which only datagram queues accept.
	// In a copy of the batch it differs from the copy's address too, so one comparison in a post detects both.
	guard     uintptr
	size      uintptr // bytes of a work request
	allocated int     // capacity + 1: requests beyond the capacity go to the last one
	end       int     // the request before this index has a NULL Next
	sges      int     // entries per work request
	// entries of the first work request, followed by those of the others
	entries    unsafe.Pointer
	overflowed bool // an entry or inline data did not fit: see err
	closed     bool
	err        error // why inline data did not fit; nil if an entry did not

	self uintptr // the address of the batch, to detect copies: two batches would relink the same chain

	mapping *offheap.Mapping
	_       noCopy
}

// noCopy makes go vet report copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// mapBatch maps the memory of a batch of n requests with their entries and inline bytes. It returns n+1 requests and
// the address of the inline bytes.
func mapBatch[W any](b *batch, verb string, n, sges, inline int) (wrs []W, bytes unsafe.Pointer, err error) {
	if n <= 0 || sges < 0 || inline < 0 {
		return nil, nil, invalid(verb, "", "a batch of %d requests with %d entries and %d inline bytes each; it needs "+
			"at least one request, and no number may be negative", n, sges, inline)
	}
	var l layout
	b.size = unsafe.Sizeof(*new(W))
	requests, entries := l.add(n+1, 1, b.size), l.add(n+1, sges, unsafe.Sizeof(ibv.SGE{}))
	data, bad := l.add(n+1, inline, 1), l.add(1, 1, unsafe.Sizeof(uintptr(0)))
	if b.mapping, err = l.mapMemory(); err != nil {
		return nil, nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(b.mapping.Bytes()))
	first := (*W)(unsafe.Add(base, requests))
	b.first, b.bad = uintptr(unsafe.Pointer(first)), (*uintptr)(unsafe.Add(base, bad))
	b.entries = unsafe.Add(base, entries)
	b.allocated, b.sges, b.linked, b.end = n+1, sges, unlinked, unlinked
	b.self, b.guard = address(b), address(b)
	return unsafe.Slice(first, n+1), unsafe.Add(base, data), nil
}

// checkSelf returns an error if the batch is a copy or a zero value.
func (b *batch) checkSelf() error {
	switch b.self {
	case address(b):
		return nil
	case 0:
		return errBatchZero
	}
	return errBatchCopied
}

var (
	errBatchZero   = invalid("", "", "the batch is a zero value; create it with its constructor")
	errBatchNil    = invalid("", "", "the batch is nil")
	errBatchCopied = invalid("", "", "the batch is a copy of another batch and shares its memory")
	errBatchEmpty  = invalid("", "", "the batch is empty; waiting for its completion would block forever")
	errBatchClosed = closed("batch")
)

// unlinked is the value of linked and end before the next pointers are set for a post.
const unlinked = -1

// wr returns request i as a receive request. Send requests begin with the same fields.
func (b *batch) wr(i int) *ibv.RecvWR {
	return ibv.Ptr[ibv.RecvWR](b.at(i)).Deref()
}

// sends returns requests from through to-1 of a batch of sends.
func (b *batch) sends(from, to int) []ibv.SendWR {
	return unsafe.Slice(ibv.Ptr[ibv.SendWR](b.at(from)).Deref(), to-from)
}

// at returns the address of request i.
func (b *batch) at(i int) uintptr { return b.first + uintptr(i)*b.size }

var _ = [1]byte{}[unsafe.Offsetof(ibv.SendWR{}.WRID)-unsafe.Offsetof(ibv.RecvWR{}.WRID)+
	unsafe.Offsetof(ibv.SendWR{}.Next)-unsafe.Offsetof(ibv.RecvWR{}.Next)+
	unsafe.Offsetof(ibv.SendWR{}.SGList)-unsafe.Offsetof(ibv.RecvWR{}.SGList)+
	unsafe.Offsetof(ibv.SendWR{}.NumSGE)-unsafe.Offsetof(ibv.RecvWR{}.NumSGE)]

// link sets the next pointers and the entries of all work requests.
func (b *batch) link() {
	for i := range b.allocated {
		w := b.wr(i)
		if i+1 < b.allocated {
			w.Next = ibv.Ptr[ibv.RecvWR](b.at(i + 1))
		}
		w.SGList = ibv.Ptr[ibv.SGE](uintptr(b.entries) + uintptr(i*b.sges*sizeofSGE))
	}
}

const sizeofSGE = int(unsafe.Sizeof(ibv.SGE{}))

// Reset empties the batch.
func (b *batch) Reset() {
	if !b.closed {
		b.n, b.overflowed = 0, false
	}
}

// Len returns the number of requests.
func (b *batch) Len() int { return min(b.n, b.Cap()) }

// Cap returns the maximum number of requests.
func (b *batch) Cap() int { return max(b.allocated-1, 0) }

// Err returns an error if the batch is closed or a copy, or if something did not fit since the last Reset.
func (b *batch) Err() error {
	if b.closed {
		return errBatchClosed
	}
	if err := b.checkSelf(); err != nil {
		return err
	}
	switch {
	case b.n > b.Cap():
		return &VerbError{Errno: syscall.ENOMEM,
			Reason: fmt.Sprintf("the batch has room for %d work requests, not for %d", b.Cap(), b.n)}
	case b.overflowed && b.err == nil:
		return invalid("", "", "no room for another entry: the batch has %d for each work request", b.sges)
	}
	return b.err
}

// complete reports whether the batch can be posted: everything fit, and the range is not empty.
func (b *batch) complete(from, to int) bool {
	return b.n < b.allocated && !b.overflowed && from != to
}

// endAt terminates the chain after request to-1. It panics if the range is not inside the batch.
func (b *batch) endAt(from, to int) {
	if from < 0 || to <= from || to > b.n {
		panic(fmt.Sprintf("rdma: requests %d to %d of a batch of %d", from, to, b.n))
	}
	if b.end != to {
		if b.end != unlinked {
			b.wr(b.end - 1).Next = ibv.Ptr[ibv.RecvWR](b.at(b.end))
		}
		b.wr(to - 1).Next = 0
	}
	b.end, b.linked = to, to
}

// refused returns the index of the request that C returned in bad_wr, or -1 if it is not in the range.
func (b *batch) refused(from, to int) int {
	if at := *b.bad - b.first; at >= uintptr(from)*b.size && at < uintptr(to)*b.size {
		return int(at / b.size)
	}
	return -1
}

// entries returns n SGEs as a slice, with a single bounds check.
func entries(list ibv.Ptr[ibv.SGE], n int32) []ibv.SGE {
	const many = 1 << 20
	return (*[many]ibv.SGE)(unsafe.Pointer(list.Deref()))[:n:n]
}

// layout computes the offsets of arrays in one mapping, each aligned to a cache line.
type layout struct {
	size    int
	tooMuch bool // the size overflowed
}

// add appends an array of n times each items of a size.
func (l *layout) add(n, each int, size uintptr) (offset int) {
	offset = l.size
	if room := (math.MaxInt - 63 - offset) / int(size); n < 0 || each > 0 && n > room/each {
		l.tooMuch = true
		return offset
	}
	l.size += (n*each*int(size) + 63) &^ 63
	return offset
}

func (l *layout) mapMemory() (*offheap.Mapping, error) {
	if l.tooMuch {
		return nil, &VerbError{Errno: syscall.ENOMEM, Reason: "the size exceeds the address space"}
	}
	m, err := offheap.Map(l.size, offheap.Options{})
	return m, wrap("", "", err)
}
