// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"slices"
	"sort"

	"github.com/goverbs/goverbs/generated/ibv"
)

// index finds regions by their addresses. No region contains another one. So both their starts and their ends ascend,
// and if any region contains an interval, the last one that begins before it does.
type index struct {
	access  ibv.AccessFlags
	starts  []uintptr // of the regions: one cache line has eight
	regions []*region
}

// after returns the number of regions that begin at an address or before.
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

// find returns the region that contains an interval, or nil.
func (x *index) find(start, end uintptr) *region {
	if i := x.after(start); i > 0 && end <= x.regions[i-1].end {
		return x.regions[i-1]
	}
	return nil
}

// inside returns a new slice of the regions that an interval contains.
func (x *index) inside(start, end uintptr) []*region {
	first := sort.Search(len(x.starts), func(i int) bool { return x.starts[i] >= start })
	last := first
	for last < len(x.regions) && x.regions[last].end <= end {
		last++
	}
	return slices.Clone(x.regions[first:last])
}

// overlapping returns a new slice of the regions that have addresses in common with an interval.
func (x *index) overlapping(start, end uintptr) []*region {
	first := sort.Search(len(x.regions), func(i int) bool { return x.regions[i].end > start })
	last := first
	for last < len(x.starts) && x.starts[last] < end {
		last++
	}
	return slices.Clone(x.regions[first:last])
}

// add adds a region that contains none of the others, and that none of them contains.
func (x *index) add(r *region) {
	i := x.after(r.start)
	x.starts, x.regions = slices.Insert(x.starts, i, r.start), slices.Insert(x.regions, i, r)
}

// remove removes a region.
func (x *index) remove(r *region) {
	i := x.after(r.start) - 1
	x.starts, x.regions = slices.Delete(x.starts, i, i+1), slices.Delete(x.regions, i, i+1)
}

// idleList has the regions without a lease, in the order in which they were released.
type idleList struct {
	ring  region // newer leads to the oldest, older to the newest
	count int
	bytes int64
}

func (l *idleList) init() { l.ring.newer, l.ring.older = &l.ring, &l.ring }

// add adds the newest.
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
