// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Tags is the tag list of a shared receive queue with tag matching.
type Tags struct {
	Entries    []*Tag    // in the order in which they match
	Ops        RecvQueue // counts operations whose completions were not polled
	Unexpected uint32    // messages that matched no tag

	free []*Tag // for reuse
	most int
	last uint32 // handle
	told uint32 // number of unexpected messages that the program last reported as seen
}

// Tag is an entry of the list.
type Tag struct {
	Handle    uint32
	ID        uint64 // recv_wr_id
	Tag, Mask uint64
	SGEs      []ibv.SGE
	Held      bool // added when the program had not seen every unexpected message, and so matches none before it has
}

// NewTags creates a list with room for the given numbers of tags and operations.
func NewTags(c *ibv.TMCap) *Tags {
	return &Tags{most: int(c.MaxNumTags), Ops: RecvQueue{Capacity: c.MaxOps, Shared: true}}
}

// InStep reports whether the program has seen every unexpected message.
func (t *Tags) InStep() bool { return t.told == t.Unexpected }

// Tell records the program's count of unexpected messages.
func (t *Tags) Tell(count uint32) {
	t.told = count
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
// tag has a bit outside its mask matches nothing: ibv_post_srq_ops(3) masks the message's tag alone.
func (t *Tags) Match(of uint64) int {
	return slices.IndexFunc(t.Entries, func(e *Tag) bool { return !e.Held && of&e.Mask == e.Tag })
}

// Take removes an entry from the list.
func (t *Tags) Take(i int) { t.Entries = slices.Delete(t.Entries, i, i+1) }

// IsFull reports whether the list has no room.
func (t *Tags) IsFull() bool { return len(t.Entries) >= t.most }

// Add appends an entry with a number of buffers.
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
