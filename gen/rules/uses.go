// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"slices"
	"strings"
)

// Uses lists the functions that return or take a type, and the members of that type.
type Uses struct {
	Library  string   // the package of the functions
	Returned []string // functions
	Taken    []string // functions
	Held     []string // members: "QPInitAttr.QPType"
}

// holds is the prefix of the note on an integer member that holds values of an enumeration.
const holds = "holds "

// uses collects the uses of each record and enumeration of the plan.
func (r *resolver) uses() {
	of := map[string]*Uses{} // Go name → uses
	note := func(t GoType, list func(*Uses) *[]string, name string) {
		u := of[t.Name]
		if t.Import != "" && t.Import != r.plan.Import || u == nil {
			return
		}
		if l := list(u); !slices.Contains(*l, name) {
			*l = append(*l, name)
		}
	}
	for i := range r.plan.Records {
		of[r.plan.Records[i].Go] = &r.plan.Records[i].Uses
	}
	for i := range r.plan.Enums {
		of[r.plan.Enums[i].Go] = &r.plan.Enums[i].Uses
	}
	if r.plan.Verbs != nil {
		for _, u := range of {
			u.Library = r.plan.Verbs.Verbs.Name
		}
		for _, f := range r.plan.Verbs.Funcs {
			note(f.Result, func(u *Uses) *[]string { return &u.Returned }, f.Go)
			for _, p := range f.Params {
				note(p.Type, func(u *Uses) *[]string { return &u.Taken }, f.Go)
			}
		}
	}
	held := func(u *Uses) *[]string { return &u.Held }
	for _, rec := range r.plan.Records {
		for _, v := range rec.Variants {
			for _, m := range v.Members {
				if m.C == "" {
					continue
				}
				note(m.Type, held, rec.Go+"."+m.Go)
				for _, n := range m.Notes {
					if name, ok := strings.CutPrefix(n, holds); ok {
						note(GoType{Name: name}, held, rec.Go+"."+m.Go)
					}
				}
			}
		}
		for _, a := range rec.Access {
			note(a.Type, held, rec.Go+"."+a.Go)
		}
	}
}
