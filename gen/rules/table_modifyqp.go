// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// modelTable returns the table of a man page.
func modelTable(r *model.Release, name string) (*model.Table, error) {
	for i := range r.Tables {
		if r.Tables[i].Name == name {
			return &r.Tables[i], nil
		}
	}
	return nil, fmt.Errorf("model of %s: it has no table %s; record it again with its man pages", r.Name, name)
}

// modifyQPBase fills in the cells from the man page's tables: for each transition, the attributes required on the way
// from reset through the states of the columns.
func modifyQPBase(r *model.Release, _ *GridFile, g *Grid, _ gridSet) error {
	t, err := modelTable(r, "modify_qp")
	if err != nil {
		return err
	}
	required := g.value("Required")
	for _, row := range t.Rows {
		from := "IBV_QPS_RESET"
		for i, to := range t.Columns {
			cell := g.At(row.Name, from, to)
			if cell == nil {
				return fmt.Errorf("model of %s: %s: %s from %s to %s is not a cell of table "+
					"%s", r.Name, t.Page, row.Name,
					from, to, g.Name)
			}
			v, err := (&gridResolver{g: g}).read(&g.Values[required], row.Cells[i])
			if err != nil {
				return fmt.Errorf("model of %s: %s: %s to %s: %w", r.Name, t.Page, row.Name, to, err)
			}
			cell.Validity = Validity{Answer: Yes, Reason: "the page has a table for it", Source: g.Source()}
			cell.Values[required] = v
			from = to
		}
	}
	return nil
}

// value returns the index of a value by its Go name.
func (g *Grid) value(name string) int {
	for i := range g.Values {
		if g.Values[i].Go == name {
			return i
		}
	}
	panic("table " + g.Name + " has no value " + name)
}

// word corrects a word of the page and returns the note to print.
func (f *GridFile) word(w string) (corrected, note string) {
	for _, r := range f.readings {
		if r.word == w {
			r.row.Fired = true
			if r.as == "nothing" {
				return "", fmt.Sprintf("the page says %q: %s (%s)", w, r.why.Reason, r.why.Source)
			}
			return r.as, fmt.Sprintf("the page says %q: %s (%s)", w, r.why.Reason, r.why.Source)
		}
	}
	return w, ""
}

// words splits a cell of a page into words and corrects them. notes holds the note of each corrected word.
func (f *GridFile) words(cell string) (all []string, notes map[string]string) {
	notes = map[string]string{}
	for _, w := range strings.Split(cell, ", ") {
		corrected, note := f.word(w)
		if corrected != "" {
			all = append(all, corrected)
		}
		if note != "" {
			notes[corrected] = note
		}
	}
	return all, notes
}
