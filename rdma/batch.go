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

// batch is the common part of batches of sends, receives and tag operations, their first member.
type batch struct {
	first uintptr  // address of the first work request
	bad   *uintptr // C stores here which request it refused; outside Go's heap
	n     int      // requests that were appended, also beyond the capacity
	// linked is the number of requests that the next pointers lead through. A batch with another n is not posted as it
	// is.
	linked int
	// home is self, or the address of the last request that was given a datagram's address, which only some queues
	// take. In a copy it is not the batch's own address either, so a post compares once to find both.
	guard     uintptr
	size      uintptr // bytes of a work request
	allocated int     // capacity + 1: the last one takes what is appended beyond the capacity
	end       int     // number of the request whose Next is NULL; every other points on
	sges      int     // room of each work request
	// entries of the first work request; the next one's come behind
	entries    unsafe.Pointer
	overflowed bool // there was no room for something: see err
	closed     bool
	err        error // of missing inline bytes; nil for a missing entry

	self uintptr // the address of the batch, which a copy does not have: two batches would link one chain in two ways

	mapping *offheap.Mapping
	_       noCopy
}

// noCopy has go vet complain about copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// mapBatch maps the memory of a batch of n requests, with their entries and inline bytes. It returns the requests, one
// more than n, and the address of the inline bytes.
func mapBatch[W any](b *batch, verb string, n, sges, inline int) (wrs []W, bytes unsafe.Pointer, err error) {
	if n <= 0 || sges < 0 || inline < 0 {
		return nil, nil, invalid(verb, "", "a batch of %d requests with %d entries and %d inline bytes each: it needs "+
			"at least one request, and no negative number", n, sges, inline)
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

// own returns an error if the batch is a copy, or a zero value.
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
	errBatchZero   = invalid("", "", "the batch is the zero value of its type, and needs its constructor")
	errBatchNil    = invalid("", "", "the batch is nil")
	errBatchCopied = invalid("", "", "the batch is a copy of another one, whose memory it shares")
	errBatchEmpty  = invalid("", "", "the batch is empty, so there is nothing to post, and no completion will come")
	errBatchClosed = closed("batch")
)

// nowhere is linked and end of a batch whose next pointers were not set for a post.
const unlinked = -1

// wr is a work request as far as sends and receives are alike: a receive is how a send begins.
func (b *batch) wr(i int) *ibv.RecvWR {
	return ibv.Ptr[ibv.RecvWR](b.at(i)).Deref()
}

// sends are the work requests of a batch of sends from one index up to another, exclusive.
func (b *batch) sends(from, to int) []ibv.SendWR {
	return unsafe.Slice(ibv.Ptr[ibv.SendWR](b.at(from)).Deref(), to-from)
}

// at is the address of a work request.
func (b *batch) at(i int) uintptr { return b.first + uintptr(i)*b.size }

var _ = [1]byte{}[unsafe.Offsetof(ibv.SendWR{}.WRID)-unsafe.Offsetof(ibv.RecvWR{}.WRID)+
	unsafe.Offsetof(ibv.SendWR{}.Next)-unsafe.Offsetof(ibv.RecvWR{}.Next)+
	unsafe.Offsetof(ibv.SendWR{}.SGList)-unsafe.Offsetof(ibv.RecvWR{}.SGList)+
	unsafe.Offsetof(ibv.SendWR{}.NumSGE)-unsafe.Offsetof(ibv.RecvWR{}.NumSGE)]

// link lets each work request point to the next one, and to its entries.
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

// Len is the number of requests.
func (b *batch) Len() int { return min(b.n, b.Cap()) }

// Cap is the number of requests that there is room for.
func (b *batch) Cap() int { return max(b.allocated-1, 0) }

// Err returns an error if the batch is closed or a copy, or had no room for something since the last Reset.
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
			Reason: fmt.Sprintf("the batch is full: it was made for %d work requests, not for %d", b.Cap(), b.n)}
	case b.overflowed && b.err == nil:
		return invalid("", "", "no room for another entry: the batch was made for %d in each work request", b.sges)
	}
	return b.err
}

// postable reports whether a part of the batch can be posted: the batch lacks nothing, and the part is not empty.
func (b *batch) complete(from, to int) bool {
	return b.n < b.allocated && !b.overflowed && from != to
}

// endAt ends the chain behind request to - 1. A range that is not inside the batch panics.
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

// refused is the index of the request between two places that C said it did not take, or -1.
func (b *batch) refused(from, to int) int {
	if at := *b.bad - b.first; at >= uintptr(from)*b.size && at < uintptr(to)*b.size {
		return int(at / b.size)
	}
	return -1
}

// entries is a list of SGEs. It is written so that it costs one comparison.
func entries(list ibv.Ptr[ibv.SGE], n int32) []ibv.SGE {
	const many = 1 << 20
	return (*[many]ibv.SGE)(unsafe.Pointer(list.Deref()))[:n:n]
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

func (l *layout) mapMemory() (*offheap.Mapping, error) {
	if l.tooMuch {
		return nil, &VerbError{Errno: syscall.ENOMEM, Reason: "so much memory cannot be had"}
	}
	m, err := offheap.Map(l.size, offheap.Options{})
	return m, wrap("", "", err)
}
