// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Tags is the tag list of a shared receive queue that matches tags.
type Tags struct {
	Entries    []*Tag    // in matching order
	Ops        RecvQueue // counts operations whose completions are not polled yet
	Unexpected uint32    // messages that matched no tag

	free []*Tag // for reuse
	most int
	last uint32 // handle
	seen uint32 // number of unexpected messages that the program has seen, as last reported
}

// Tag is an entry of the list.
type Tag struct {
	Handle    uint32
	ID        uint64 // recv_wr_id
	Tag, Mask uint64
	SGEs      []ibv.SGE
	Held      bool // matches nothing until the program has seen every unexpected message before it
}

// NewTags returns a list with the requested capacity of tags and operations.
func NewTags(c *ibv.TMCap) *Tags {
	return &Tags{most: int(c.MaxNumTags), Ops: RecvQueue{Capacity: c.MaxOps, Shared: true}}
}

// InStep reports whether the program has seen every unexpected message.
func (t *Tags) InStep() bool { return t.seen == t.Unexpected }

// SetSeen records the program's count of unexpected messages.
func (t *Tags) SetSeen(count uint32) {
	t.seen = count
	if t.InStep() {
		for _, e := range t.Entries {
			e.Held = false
		}
	}
}

// Holds reports whether a tag is held back.
func (t *Tags) Holds() bool {
	return !t.InStep() && slices.ContainsFunc(t.Entries, func(e *Tag) bool { return e.Held })
}

// Match returns the index of the first entry that matches a tag, or −1; Take removes it from the list. An entry whose
// tag has bits outside its mask matches nothing: ibv_post_srq_ops(3) masks only the message's tag.
func (t *Tags) Match(of uint64) int {
	for i, e := range t.Entries {
		if of&e.Mask == e.Tag && !e.Held {
			return i
		}
	}
	return -1
}

// Take removes an entry from the list.
func (t *Tags) Take(i int) { t.Entries = slices.Delete(t.Entries, i, i+1) }

// IsFull reports whether the list has no room.
func (t *Tags) IsFull() bool { return len(t.Entries) >= t.most }

// Add appends an entry with copies of the buffers.
func (t *Tags) Add(sges []ibv.SGE) *Tag {
	var e *Tag
	if n := len(t.free); n > 0 {
		e, t.free = t.free[n-1], t.free[:n-1]
	} else {
		e = &Tag{}
	}
	t.last++
	*e = Tag{Handle: t.last, SGEs: append(e.SGEs[:0], sges...)}
	t.Entries = append(t.Entries, e)
	return e
}

// Recycle returns a taken entry that is no longer needed to the free list.
func (t *Tags) Recycle(e *Tag) { t.free = append(t.free, e) }
