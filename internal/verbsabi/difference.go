// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Difference is a difference between installed headers and the Go package. Item.Want is the value of the Go package.
type Difference struct {
	Item
	Headers string `json:"headers"` // value of the installed headers; empty if missing
	// release that introduced the newer of the two values, or "" if no recorded release shows it
	Since      string `json:"since,omitempty"`
	Compatible bool   `json:"compatible"`
	Why        string `json:"why"`
	where      string // name of the installed layouts in messages; empty for headers
}

// String returns the difference on one line.
func (d Difference) String() string {
	name := d.Name
	if name == "-" || (d.Kind == EnumeratorItem && d.Path != "") {
		name = d.Path
	} else if d.Path != "" {
		name += "." + d.Path
	}
	where := cmp.Or(d.where, theseHeaders)
	var what string
	switch {
	case d.Headers == "":
		what = "not in " + where
	case d.Want == "":
		what = "only in " + where
	default:
		what = fmt.Sprintf("%s is %s in %s, %s in Go", d.Fact, d.Headers, where, d.Want)
	}
	s := fmt.Sprintf("%s %s: %s: %s", d.Kind, name, what, d.Why)
	if d.Since != "" {
		s += "; since " + d.Since
	}
	return s
}

// compareReleases orders release names like "44.0" and "65.0" by their numbers.
func compareReleases(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var n, m int
		if i < len(as) {
			n, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			m, _ = strconv.Atoi(bs[i])
		}
		if n != m {
			return cmp.Compare(n, m)
		}
	}
	return 0
}
