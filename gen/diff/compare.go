// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Generation is a release and its generated packages.
type Generation struct {
	*model.Release
	Go        API // nil if the packages were not generated
	Grids     []*rules.Grid
	Unplanned map[string]error // errors of the tables that could not be built
}

// Planned returns a Generation with the release's tables and the given identifiers.
func Planned(r *model.Release, api API) Generation {
	grids, unplanned := rules.GridsOf(r)
	return Generation{Release: r, Go: api, Grids: grids, Unplanned: unplanned}
}

// Compare reports every change from the old to the new release.
func Compare(old, new Generation, j *Judgements) *Report {
	o, n := newIndex(old.Release), newIndex(new.Release)
	c := &comparison{
		Report: &Report{Project: old.Project, Old: old.Name, New: new.Name}, j: j, old: o, new: n,
		judge: &judge{old: o, new: n, uses: uses(o, j)}, targets: commonTargets(old.Release, new.Release),
	}
	if !slices.Equal(old.Targets, new.Targets) {
		c.note("targets differ: %s had %s, %s has %s", old.Name, strings.Join(old.Targets, " "), new.Name,
			strings.Join(new.Targets, " "))
	}
	c.headers()
	c.records()
	c.enums()
	c.constants()
	c.macros()
	c.functions()
	c.funcTypes()
	c.libraries()
	c.tables()
	c.grids(old, new)
	c.goNames(old.Go, new.Go)
	c.overrule()
	c.finish(c.places(old, new))
	return c.Report
}

// comparison collects the entries.
type comparison struct {
	*Report
	j        *Judgements
	old, new *index
	judge    *judge
	targets  []string // targets of both releases
}

func (c *comparison) add(e Entry) { c.Entries = append(c.Entries, e) }

func (c *comparison) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// headers adds entries for headers that only one of the releases has.
func (c *comparison) headers() {
	names := func(r *model.Release) (all []string) {
		for _, h := range r.Headers {
			if !h.Support {
				all = append(all, h.Name)
			}
		}
		return all
	}
	was, is := names(c.old.Release), names(c.new.Release)
	for _, h := range was {
		if !slices.Contains(is, h) {
			c.note("%s has no %s", c.New, h)
		}
	}
	for _, h := range is {
		if !slices.Contains(was, h) {
			c.note("%s has no %s", c.Old, h)
		}
	}
}

// places returns the places of a report in order: headers, libraries, man pages, tables, packages.
func (c *comparison) places(old, new Generation) []string {
	var all []string
	for _, r := range []Generation{new, old} {
		for _, h := range r.Headers {
			all = append(all, h.Name)
		}
	}
	for _, r := range []Generation{new, old} {
		for _, l := range r.Libraries {
			all = append(all, l.Name)
		}
	}
	for _, r := range []Generation{new, old} {
		for _, t := range r.Tables {
			all = append(all, t.Page)
		}
		for _, f := range r.Flags {
			all = append(all, f.Page)
		}
	}
	for _, r := range []Generation{new, old} {
		for _, g := range r.Grids {
			all = append(all, inTable(g.Name))
		}
	}
	return append(append(all, new.Go.packages()...), old.Go.packages()...)
}

// overrule applies the rows that override a verdict.
func (c *comparison) overrule() {
	for i := range c.Entries {
		e := &c.Entries[i]
		if r := c.j.Lookup("verdict", string(e.Change)+" "+e.Name); r != nil && verdictOf(r.Columns[2]) != e.Verdict {
			r.Fired = true
			e.Verdict, e.Reason = verdictOf(r.Columns[2]), r.Columns[3]
		}
	}
}

// withoutConst removes const from the spelling of a type.
func withoutConst(s string) string { return strings.ReplaceAll(s, "const ", "") }
