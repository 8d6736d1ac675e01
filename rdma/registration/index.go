// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"slices"
	"sort"

	"github.com/goverbs/goverbs/generated/ibv"
)

// index finds regions by address. No region contains another one, so both their starts and their ends are in ascending
// order. If any region contains a range, it is the last one that begins before the range does.
type index struct {
	access  ibv.AccessFlags
	starts  []uintptr // starts of the regions; a separate slice, because a cache line has eight
	regions []*region
}

// after returns the number of regions that begin at or before an address.
func (x *index) after(start uintptr) int {
	low, high := 0, len(x.starts)
	for low < high {
		if middle := int(uint(low+high) / 2); x.starts[middle] <= start {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// find returns the region that contains a range, or nil.
func (x *index) find(start, end uintptr) *region {
	if i := x.after(start); i > 0 && end <= x.regions[i-1].end {
		return x.regions[i-1]
	}
	return nil
}

// inside returns a new slice of the regions that a range contains.
func (x *index) inside(start, end uintptr) []*region {
	first := sort.Search(len(x.starts), func(i int) bool { return x.starts[i] >= start })
	last := first
	for last < len(x.regions) && x.regions[last].end <= end {
		last++
	}
	return slices.Clone(x.regions[first:last])
}

// overlapping returns a new slice of the regions that overlap a range.
func (x *index) overlapping(start, end uintptr) []*region {
	first := sort.Search(len(x.regions), func(i int) bool { return x.regions[i].end > start })
	last := first
	for last < len(x.starts) && x.starts[last] < end {
		last++
	}
	return slices.Clone(x.regions[first:last])
}

// add adds a region. It must not contain another one or be contained in one.
func (x *index) add(r *region) {
	i := x.after(r.start)
	x.starts, x.regions = slices.Insert(x.starts, i, r.start), slices.Insert(x.regions, i, r)
}

// remove removes a region.
func (x *index) remove(r *region) {
	i := x.after(r.start) - 1
	x.starts, x.regions = slices.Delete(x.starts, i, i+1), slices.Delete(x.regions, i, i+1)
}

// idleList contains the regions without a lease, in order of release.
type idleList struct {
	ring  region // sentinel: newer is the oldest region, older the newest
	count int
	bytes int64
}

func (l *idleList) init() { l.ring.newer, l.ring.older = &l.ring, &l.ring }

// add adds a region as the newest.
func (l *idleList) add(r *region) {
	r.older, r.newer = l.ring.older, &l.ring
	r.older.newer, r.newer.older = r, r
	l.count++
	l.bytes += r.size()
}

func (l *idleList) remove(r *region) {
	r.older.newer, r.newer.older = r.newer, r.older
	r.older, r.newer = nil, nil
	l.count--
	l.bytes -= r.size()
}

func (l *idleList) oldest() *region { return l.ring.newer }
