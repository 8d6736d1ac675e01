// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"iter"
	"math/bits"
	"unsafe"
)

// trackedQueues is the queues that complete in a completion queue under the number of a queue pair; either may be nil.
type trackedQueues struct {
	Send  *SendQueue
	Recv  *RecvQueue
	Alone bool // none of the completions are of a shared receive queue that is not named here
}

// trackedTable finds what completes under the number of a queue pair. It is a table with open addressing: a completion
// touches one cache line of it, however many queue pairs there are. init comes before any other method.
type trackedTable struct {
	first unsafe.Pointer // of mask + 1 places, a power of two, of which at most three quarters are taken
	mask  uint32
	shift uint32 // of a hash of 32 bits, which then is a place
	count int
}

// tracking is a place: 32 bytes on 64-bit machines, so that none is in two cache lines.
type trackedPlace struct {
	trackedQueues
	num uint64 // of the queue pair, and taken; or 0
}

// taken is a bit that no number has.
const taken = 1 << 32

// fewestPlaces is how many places there are at first. No hash may be shifted away, so there are two at least.
const fewestPlaces = 4

func (t *trackedTable) init() { t.resize(fewestPlaces) }

// place is a place of the table.
func (t *trackedTable) place(at uint32) *trackedPlace {
	return (*trackedPlace)(unsafe.Add(t.first, uintptr(at)*unsafe.Sizeof(trackedPlace{})))
}

// home is the place of a number, unless it was taken before: the number times 2³² divided by the golden ratio spreads
// numbers whatever their distance is.
func (t *trackedTable) home(num uint32) uint32 { return num * 0x9e3779b1 >> (t.shift & 31) }

// find is what completes under a number, or nil.
func (t *trackedTable) find(num uint32) *trackedQueues {
	for at := t.home(num); ; at = (at + 1) & t.mask {
		switch p := t.place(at); p.num {
		case uint64(num) | taken:
			return &p.trackedQueues
		case 0:
			return nil
		}
	}
}

// set keeps what completes under a number.
func (t *trackedTable) set(num uint32, is trackedQueues) {
	if p := t.find(num); p != nil {
		*p = is
		return
	}
	if size := int(t.mask) + 1; 4*(t.count+1) > 3*size {
		t.resize(2 * size)
	}
	t.count++
	t.put(trackedPlace{is, uint64(num) | taken})
}

// put takes a place for a number that has none. One is free.
func (t *trackedTable) put(is trackedPlace) {
	at := t.home(uint32(is.num))
	for t.place(at).num != 0 {
		at = (at + 1) & t.mask
	}
	*t.place(at) = is
}

// remove forgets a number.
func (t *trackedTable) remove(num uint32) {
	if t.find(num) == nil {
		return
	}
	t.count--
	hole := t.home(num)
	for t.place(hole).num != uint64(num)|taken {
		hole = (hole + 1) & t.mask
	}
	for at := (hole + 1) & t.mask; t.place(at).num != 0; at = (at + 1) & t.mask {
		// another number moves to the hole if a search for it passes there
		if p := t.place(at); (at-t.home(uint32(p.num)))&t.mask >= (at-hole)&t.mask {
			*t.place(hole) = *p
			hole = at
		}
	}
	*t.place(hole) = trackedPlace{}
	if size := int(t.mask) + 1; size > fewestPlaces && 8*t.count < size {
		t.resize(size / 4)
	}
}

// resize changes the number of places.
func (t *trackedTable) resize(size int) {
	size = max(size, fewestPlaces)
	old := *t
	t.first = unsafe.Pointer(unsafe.SliceData(make([]trackedPlace, size)))
	t.mask, t.shift = uint32(size-1), uint32(32-bits.Len(uint(size-1)))
	if old.first == nil {
		return
	}
	for i := range old.mask + 1 {
		if p := old.place(i); p.num != 0 {
			t.put(*p)
		}
	}
}

// all is what completes under any number.
func (t *trackedTable) all() iter.Seq[*trackedQueues] {
	return func(yield func(*trackedQueues) bool) {
		for i := range t.mask + 1 {
			if p := t.place(i); p.num != 0 && !yield(&p.trackedQueues) {
				return
			}
		}
	}
}
