// SPDX-License-Identifier: BSD-2-Clause

// Package grids prints validity tables as text, HTML and JSON.
package grids

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/rules"
)

// words maps answers to the words that are printed here and in Go.
var words = map[rules.Answer]string{rules.Unspecified: "unspecified", rules.Yes: "yes", rules.No: "no",
	rules.Elsewhere: "not in this verb", rules.Capability: "needs a capability"}

// Answer returns the word for an answer.
func Answer(a rules.Answer) string { return cmp.Or(words[a], string(a)) }

// gridView is a table for display: a matrix for each combination of all but the last two dimensions, and a list of the
// cells' values.
type gridView struct {
	Name, Question, Release, Source, Legend string
	Pages                                   []string
	Matrices                                []matrixView
	Values                                  *valuesView // nil for a table without values
	Notes                                   []string    // numbered from 1
}

type matrixView struct {
	Title   string
	Corner  string
	Columns []string
	Rows    []matrixRow
}

type matrixRow struct {
	Name  string
	Cells []cellView
}

type cellView struct {
	Mark, Class, Tip string
	Note             int // 0 for none
}

type valuesView struct {
	Columns []string
	Rows    [][]string
}

// marks maps answers to a character and a CSS class.
var marks = map[rules.Answer][2]string{
	rules.Yes: {"X", "yes"}, rules.No: {".", "no"}, rules.Elsewhere: {"-", "elsewhere"}, rules.Capability: {"c",
		"capability"}, rules.Unspecified: {"?", "unspecified"},
}

// gridViewer numbers the notes of a table.
type gridViewer struct {
	g     *rules.Grid
	short [][]string // items of each dimension, without their common prefix
	all   bool       // all cells get a note, not only those that the page does not decide
	notes []string
}

func viewGrid(g *rules.Grid, all bool) *gridView {
	v := &gridViewer{g: g, all: all}
	for _, d := range g.Dims {
		v.short = append(v.short, shorten(d.Names))
	}
	out := &gridView{
		Name: g.Name, Question: g.Question, Pages: g.Pages, Release: g.Release, Source: g.Sources(),
		Legend: "X yes   . no   c needs a capability   - with another function   ? unspecified",
	}
	n := len(g.Dims)
	lead := 0 // number of dimensions in the title
	if n > 2 {
		lead = n - 2
	}
	for i := 0; i < len(g.Cells); {
		m := matrixView{Title: v.title(i, lead)}
		columns := 1
		if n > 1 {
			columns = len(v.short[n-1])
			m.Columns, m.Corner = v.short[n-1], g.Dims[n-2].What
			for _, name := range v.short[max(n-2, 0)] {
				m.Rows = append(m.Rows, v.row(name, i, columns))
				i += columns
			}
		} else {
			m.Corner, m.Columns = g.Dims[0].What, []string{""}
			for _, name := range v.short[0] {
				m.Rows = append(m.Rows, v.row(name, i, 1))
				i++
			}
		}
		out.Matrices = append(out.Matrices, m)
	}
	out.Values = v.values()
	out.Notes = v.notes
	return out
}

func (v *gridViewer) row(name string, first, n int) matrixRow {
	row := matrixRow{Name: name}
	for i := first; i < first+n; i++ {
		c := v.g.Cells[i].Validity
		mark := marks[c.Answer]
		row.Cells = append(row.Cells,
			cellView{Mark: mark[0], Class: mark[1], Tip: Answer(c.Answer) + ": " + full(c), Note: v.note(c)})
	}
	return row
}

// title returns the items of the leading dimensions.
func (v *gridViewer) title(cell, lead int) string {
	var all []string
	for i, name := range v.g.Combination(cell)[:lead] {
		all = append(all, fmt.Sprintf("%s %s", v.g.Dims[i].What, v.short[i][slices.Index(v.g.Dims[i].Names, name)]))
	}
	return strings.Join(all, ", ")
}

// note returns the number of a cell's note; 0 for none.
func (v *gridViewer) note(c rules.Validity) int {
	text := full(c)
	if page := len(v.g.Pages) > 0 && c.Source == v.g.Source(); (page || v.g.Cited != "") && !v.all {
		text = joined(c.Condition, c.Note)
	}
	if text == "" {
		return 0
	}
	if !slices.Contains(v.notes, text) {
		v.notes = append(v.notes, text)
	}
	return slices.Index(v.notes, text) + 1
}

// full returns all facts of an answer.
func full(c rules.Validity) string {
	return joined(joined(c.Condition, fmt.Sprintf("%s (%s)", c.Reason, c.Source)), c.Note)
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// values lists the cells that have values. Combinations that differ in only one dimension share a row.
func (v *gridViewer) values() *valuesView {
	g := v.g
	if len(g.Values) == 0 {
		return nil
	}
	out := &valuesView{}
	for _, d := range g.Dims {
		out.Columns = append(out.Columns, d.What)
	}
	for _, d := range g.Values {
		out.Columns = append(out.Columns, d.Go)
	}
	at := map[string]int{} // text of the other columns → row
	for i := range g.Cells {
		var row []string
		stated := false
		for d, name := range g.Combination(i) {
			row = append(row, v.short[d][slices.Index(g.Dims[d].Names, name)])
		}
		for d, value := range g.Cells[i].Values {
			row = append(row, shortValue(g.Values[d].Kind, value))
			stated = stated || value != nil
		}
		if !stated {
			continue
		}
		key := strings.Join(row[1:], "|")
		if same, ok := at[key]; ok && len(g.Dims) > 1 {
			out.Rows[same][0] += ", " + row[0]
			continue
		}
		at[key] = len(out.Rows)
		out.Rows = append(out.Rows, row)
	}
	return out
}

// shortValue formats a value for a column.
func shortValue(kind rules.ValueKind, v rules.Value) string {
	if kind == rules.Text || kind == rules.Number || len(v) == 0 {
		return v.String()
	}
	return strings.Join(v, " ")
}

// shorten removes the common prefix of C names, at a word boundary.
func shorten(names []string) []string {
	prefix := ""
	for {
		word, _, found := strings.Cut(names[0][len(prefix):], "_")
		next := prefix + word + "_"
		if !found || slices.ContainsFunc(names,
			func(n string) bool { return !strings.HasPrefix(n, next) || n == next || strings.ContainsAny(n, " ") }) {
			break
		}
		prefix = next
	}
	var short []string
	for _, n := range names {
		short = append(short, n[len(prefix):])
	}
	return short
}
