// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/rules"
)

// grids compares the generated tables cell by cell: answer, condition and values. Explanations may change.
func (c *comparison) grids(old, new Generation) {
	called := func(all []*rules.Grid, name string) *rules.Grid {
		if i := slices.IndexFunc(all, func(g *rules.Grid) bool { return g.Name == name }); i >= 0 {
			return all[i]
		}
		return nil
	}
	lacks := func(g Generation, name string) {
		if why := g.Unplanned[name]; why != nil {
			c.note("table %s cannot be built for %s and is not compared: %v", name, g.Name, why)
			return
		}
		c.note("%s: the current rows produce no table %s; the table is not compared", g.Name, name)
	}
	for _, n := range new.Grids {
		if o := called(old.Grids, n.Name); o != nil {
			c.grid(o, n)
		} else {
			lacks(old, n.Name)
		}
	}
	for _, o := range old.Grids {
		if called(new.Grids, o.Name) == nil {
			lacks(new, o.Name)
		}
	}
}

// grid compares one table. Cells with the same change are combined into one entry if possible.
func (c *comparison) grid(o, n *rules.Grid) {
	var kinds []Entry
	cells := map[Entry][][]string{}
	add := func(names []string, change Change, old, new string, v Verdict, why string) {
		e := Entry{inTable(n.Name), Cell, n.Name, change, old, new, v, why}
		if cells[e] == nil {
			kinds = append(kinds, e)
		}
		cells[e] = append(cells[e], names)
	}
	for i := range n.Cells {
		names, is := n.Combination(i), &n.Cells[i]
		switch was := o.At(names...); {
		case was == nil && is.Silent():
			add(names, Added, "", answer(n, is), Additive, "unanswered: not specified by any source")
		case was == nil:
			add(names, Added, "", answer(n, is), Additive, "new")
		case answer(o, was) != answer(n, is):
			v, why := answered(was, is)
			add(names, Changed, answer(o, was), answer(n, is), v, why)
		}
	}
	for i := range o.Cells {
		if names := o.Combination(i); n.At(names...) == nil {
			add(names, Removed, answer(o, &o.Cells[i]), "", Breaking, "gone")
		}
	}
	for _, e := range kinds {
		for _, name := range together(cells[e]) {
			e.Name = n.Name + ": " + name
			c.add(e)
		}
	}
}

func inTable(name string) string { return "table " + name }

// answer formats the parts of a cell that programs depend on.
func answer(g *rules.Grid, c *rules.Cell) string {
	parts := []string{string(c.Answer)}
	if c.Condition != "" {
		parts[0] += " if " + c.Condition
	}
	for i, v := range c.Values {
		if v != nil {
			parts = append(parts, g.Values[i].Go+" = "+v.String())
		}
	}
	return strings.Join(parts, "; ")
}

// answered returns the verdict for a cell whose answer changed. A change to a combination that was invalid cannot break
// a program.
func answered(was, is *rules.Cell) (Verdict, string) {
	valid := func(c *rules.Cell) bool { return c.Answer == rules.Yes || c.Answer == rules.Capability }
	switch {
	case is.Silent() && valid(was):
		return Breaking, "was valid; no longer specified by any source"
	case is.Silent():
		return Additive, "was invalid; no longer specified by any source"
	case was.Answer == rules.Unspecified:
		return Additive, "was unspecified"
	case !valid(was):
		return Additive, "was invalid"
	case !valid(is):
		return Breaking, "was valid"
	case is.Answer == rules.Yes && is.Condition == "" && slices.EqualFunc(was.Values, is.Values, slices.Equal):
		return Additive, "valid without a condition"
	}
	return Breaking, "the answer differs"
}

// together combines cells, each a combination of items, into as few descriptions as possible: A × C and B × C become
// "A, B × C".
func together(cells [][]string) []string {
	all := make([][]string, len(cells)) // the items of each dimension, joined
	for i := range cells {
		all[i] = slices.Clone(cells[i])
	}
	for d := len(all[0]) - 1; d >= 0; d-- {
		at := map[string]int{}
		var merged [][]string
		for _, names := range all {
			others := fmt.Sprintf("%q", slices.Delete(slices.Clone(names), d, d+1))
			if i, ok := at[others]; ok {
				merged[i][d] += ", " + names[d]
				continue
			}
			at[others] = len(merged)
			merged = append(merged, names)
		}
		all = merged
	}
	var out []string
	for _, names := range all {
		out = append(out, strings.Join(names, " × "))
	}
	return out
}
