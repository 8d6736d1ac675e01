// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
)

// tables compares the man pages. It skips releases that were recorded without pages.
func (c *comparison) tables() {
	if p := project.Named(c.new.Project); p != nil && !p.Tables {
		return
	}
	for _, r := range []*model.Release{c.old.Release, c.new.Release} {
		if len(r.Tables) == 0 && len(r.Flags) == 0 {
			c.note("%s was read without man pages: tables are not compared", r.Name)
			return
		}
	}
	by := map[string]*model.Table{}
	for i := range c.old.Tables {
		by[c.old.Tables[i].Name] = &c.old.Tables[i]
	}
	for i := range c.new.Tables {
		n := &c.new.Tables[i]
		if o := by[n.Name]; o != nil {
			c.table(o, n)
		} else {
			c.add(Entry{n.Page, Row, n.Name, Added, "", fmt.Sprintf("table of %d rows", len(n.Rows)), Additive, "new"})
		}
		delete(by, n.Name)
	}
	for i := range c.old.Tables {
		if o := &c.old.Tables[i]; by[o.Name] != nil {
			c.add(Entry{o.Page, Row, o.Name, Removed, fmt.Sprintf("table of %d rows", len(o.Rows)), "", Breaking,
				"gone"})
		}
	}
	c.flags()
}

func (c *comparison) table(o, n *model.Table) {
	for _, col := range n.Columns {
		if !slices.Contains(o.Columns, col) {
			c.add(Entry{n.Page, Column, n.Name + ": " + col, Added, "", "", Additive, "new"})
		}
	}
	for _, col := range o.Columns {
		if !slices.Contains(n.Columns, col) {
			c.add(Entry{n.Page, Column, n.Name + ": " + col, Removed, "", "", Breaking, "gone"})
		}
	}
	before, after := rowsOf(o), rowsOf(n)
	for _, row := range after.order {
		was, had := before.cells[row]
		name := n.Name + ": " + row
		if !had {
			c.add(Entry{n.Page, Row, name, Added, "", strings.Join(after.words(row), ", "), Additive, "new"})
			continue
		}
		for _, col := range n.Columns {
			old, shared := was[col]
			is := after.cells[row][col]
			if !shared || old == is {
				continue
			}
			v, why := Breaking, "the page changed"
			if old == "no" || old == "" {
				v, why = Additive, "was invalid"
			} else if is == "no" || is == "" {
				why = "was valid"
			}
			c.add(Entry{n.Page, Cell, name + ", " + col, Changed, old, is, v, why})
		}
	}
	for _, row := range before.order {
		if _, has := after.cells[row]; !has {
			c.add(Entry{n.Page, Row, n.Name + ": " + row, Removed, strings.Join(before.words(row), ", "), "", Breaking,
				"gone"})
		}
	}
}

// pageRows holds the rows of a table by name. The second row of a name is "name (2)".
type pageRows struct {
	columns []string
	order   []string
	cells   map[string]map[string]string
}

func rowsOf(t *model.Table) pageRows {
	r := pageRows{columns: t.Columns, cells: map[string]map[string]string{}}
	for _, row := range t.Rows {
		name := row.Name
		for i := 2; r.cells[name] != nil; i++ {
			name = fmt.Sprintf("%s (%d)", row.Name, i)
		}
		r.order = append(r.order, name)
		r.cells[name] = map[string]string{}
		for i, cell := range row.Cells {
			r.cells[name][t.Columns[i]] = cell
		}
	}
	return r
}

// words returns the cells of a row that are not "no".
func (r pageRows) words(row string) []string {
	var all []string
	for _, col := range r.columns {
		if cell := r.cells[row][col]; cell != "no" && cell != "" {
			all = append(all, col+" "+cell)
		}
	}
	return all
}

// flags compares the rules of the man pages for single flags.
func (c *comparison) flags() {
	type key struct{ page, name string } // several pages describe the same flags
	before := map[key]model.Flag{}
	for _, f := range c.old.Flags {
		before[key{f.Page, f.Name}] = f
	}
	for _, n := range c.new.Flags {
		o, had := before[key{n.Page, n.Name}]
		delete(before, key{n.Page, n.Name})
		if !had {
			c.add(Entry{n.Page, FlagRule, n.Name, Added, "", rule(n), Additive, "new"})
			continue
		}
		if rule(o) == rule(n) {
			continue
		}
		v, why := Breaking, "valid in fewer or other cases"
		if wider(o.QPTypes, n.QPTypes) && wider(o.Opcodes, n.Opcodes) && o.SigAll == n.SigAll &&
			(o.Capability == n.Capability || n.Capability == "") {
			v, why = Additive, "valid in more cases"
		}
		c.add(Entry{n.Page, FlagRule, n.Name, Changed, rule(o), rule(n), v, why})
	}
	for _, o := range c.old.Flags {
		if _, gone := before[key{o.Page, o.Name}]; gone {
			c.add(Entry{o.Page, FlagRule, o.Name, Removed, rule(o), "", Breaking, "gone"})
		}
	}
}

// wider reports whether new allows everything that old allows. An empty list allows everything.
func wider(old, new []string) bool {
	return len(new) == 0 || len(old) > 0 &&
		!slices.ContainsFunc(old, func(s string) bool { return !slices.Contains(new, s) })
}

func rule(f model.Flag) string {
	var parts []string
	for _, l := range []struct {
		name string
		list []string
	}{{"on", f.QPTypes}, {"with", f.Opcodes}} {
		if len(l.list) > 0 {
			parts = append(parts, l.name+" "+strings.Join(l.list, " "))
		}
	}
	if f.Capability != "" {
		parts = append(parts, "needs "+f.Capability)
	}
	if f.SigAll {
		parts = append(parts, "without sq_sig_all")
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, "; ")
}
