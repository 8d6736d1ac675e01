// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Resources counts what programs hold of the fabric: "ctx" (open devices), "pd", "mr", "mw", "cq", "qp", "srq", "ah",
// "dm", "buf", "xrcd", "td", "dmah", "channel", "cm_id", "event channel" and "address info". Counts of 0 are omitted.
func (f *Fabric) Resources() map[string]int {
	counts := map[string]int{}
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, object := range all.objects {
		if kind, of := kindOf(object); of == &f.Engine {
			counts[kind]++
		}
	}
	return counts
}

// Held describes the objects that programs hold, sorted: one text per place of creation if Options.Trace is set,
// otherwise one per kind.
func (f *Fabric) Held() []string {
	at := map[string]map[string]int{} // kinds, by place
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, object := range all.objects {
		kind, of := kindOf(object)
		if of != &f.Engine {
			continue
		}
		where := kind // without a place
		if place, ok := all.made[object]; ok {
			where = " " + place.Made()
		}
		if at[where] == nil {
			at[where] = map[string]int{}
		}
		at[where][kind]++
	}
	var texts []string
	for where, kinds := range at {
		var counted []string
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if n := kinds[kind]; n > 1 {
				kind = fmt.Sprintf("%d %s", n, kind)
			}
			counted = append(counted, kind)
		}
		if kinds[where] > 0 {
			where = ""
		}
		texts = append(texts, strings.Join(counted, ", ")+where)
	}
	slices.Sort(texts)
	return texts
}
