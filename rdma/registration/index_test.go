// SPDX-License-Identifier: BSD-2-Clause

package registration

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// TestIndex compares an index with a linear search.
func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x index
		var list []*region
		for range rapid.IntRange(0, 40).Draw(t, "regions") {
			start := uintptr(rapid.IntRange(1, 60).Draw(t, "start"))
			end := start + uintptr(rapid.IntRange(1, 20).Draw(t, "length"))
			contains := slices.IndexFunc(list, func(r *region) bool { return r.start <= start && end <= r.end })
			if found := x.find(start, end); contains >= 0 {
				assert.Contains(t, list, found)
				assert.True(t, found.start <= start && end <= found.end)
				if rapid.Bool().Draw(t, "remove") {
					x.remove(found)
					list = slices.DeleteFunc(list, func(r *region) bool { return r == found })
				}
				continue
			} else {
				assert.Nil(t, found)
			}
			var inside, overlapping []*region
			for _, r := range list {
				if start <= r.start && r.end <= end {
					inside = append(inside, r)
				}
				if start < r.end && r.start < end {
					overlapping = append(overlapping, r)
				}
			}
			assert.ElementsMatch(t, inside, x.inside(start, end))
			assert.ElementsMatch(t, overlapping, x.overlapping(start, end))
			for _, r := range inside {
				x.remove(r)
				list = slices.DeleteFunc(list, func(other *region) bool { return other == r })
			}
			r := &region{start: start, end: end}
			x.add(r)
			list = append(list, r)
			assert.Len(t, x.starts, len(list))
		}
	})
}
