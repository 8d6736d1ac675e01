// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"slices"

	"github.com/goverbs/goverbs/gen/model"
)

// history finds the recorded release that introduced a name.
type history struct {
	releases []string
	have     []map[string]bool
}

// newHistory indexes releases in ascending order.
func newHistory(recorded Recorded) history {
	var h history
	for _, r := range recorded {
		have := map[string]bool{}
		for i := range r.Headers {
			for _, name := range declared(&r.Headers[i]) {
				have[name] = true
			}
		}
		h.releases = append(h.releases, r.Name)
		h.have = append(h.have, have)
	}
	return h
}

// of returns the first of the consecutive releases that have the name; for the earliest release it appends "or
// earlier".
func (h history) of(name string) string {
	since := ""
	for i := len(h.releases) - 1; i >= 0 && h.have[i][name]; i-- {
		since = h.releases[i]
		if i == 0 {
			since += " or earlier"
		}
	}
	return since
}

// declared lists the declarations of a header under the names that of accepts: "struct ibv_wc", "ibv_wc.status", "enum
// ibv_wc_status", "IBV_WC_SUCCESS", "ibv_poll_cq".
func declared(h *model.Header) []string {
	var all []string
	for i := range h.Records {
		rec := &h.Records[i]
		all = append(all, rec.CName())
		all = append(all, members(rec, rec.Tag)...)
	}
	for _, e := range h.Enums {
		if e.Tag != "" {
			all = append(all, "enum "+e.Tag)
		}
		for _, n := range e.Enumerators {
			all = append(all, n.Name)
		}
	}
	for _, m := range h.Macros {
		all = append(all, m.Name)
	}
	for _, f := range slices.Concat(h.Funcs, h.FuncTypes) {
		all = append(all, f.Name)
	}
	return all
}

func members(rec *model.Record, prefix string) []string {
	var all []string
	for _, f := range rec.Fields {
		at := prefix
		if f.Name != "" {
			at += "." + f.Name
			all = append(all, at)
		}
		if f.Record != nil {
			all = append(all, members(f.Record, at)...)
		}
	}
	return all
}
