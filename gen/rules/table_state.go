// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"
)

// state applies a row to one cell.
func (x *gridResolver) state(row *gridRow, combination []string, values []Value) {
	cell := x.g.At(combination...)
	name := strings.Join(combination, " × ")
	key := name + " answers"
	if row.kind != Answers {
		key = fmt.Sprintf("%s %s %s", name, row.kind, row.why.Name)
	}
	if old := x.stands[key]; old != "" {
		x.errorf(row.at, "duplicate %s, first at %s", name, old)
		return
	}
	x.stands[key] = row.at
	x.g.stated[cell] = row.at
	page := x.g.Source()
	differ := x.differ(cell, values)
	switch row.kind {
	case Answers:
		switch {
		case cell.Answer == row.answer && differ == "" && !x.adds(cell, values):
			x.errorf(row.at, "stale row: %s already says %s about %s; delete the row, or use agrees", page, row.answer,
				name)
		case cell.Answer == row.answer && differ == "":
			x.errorf(row.at, "%s already says %s about %s; use agrees to add values", page, row.answer, name)
		case cell.Answer != "" && row.answer == Unspecified:
			x.errorf(row.at, "%s says %s about %s, so it is not unspecified; use disputed", page, cell.Answer, name)
		default:
			v := Validity{Answer: row.answer, Condition: row.why.More, Reason: row.why.Reason, Source: row.why.Source}
			if cell.Answer != "" {
				v.Note = fmt.Sprintf("%s says %s: %s", cell.Source, describe(cell.Answer, differ), cell.Reason)
			}
			*cell = Cell{Validity: v, Values: values}
		}
	case Agrees:
		switch {
		case cell.Answer == "":
			x.errorf(row.at, "%s does not mention %s; give an answer", page, name)
		case differ != "":
			x.errorf(row.at, "%s has %s for %s; use disputed, or give an answer", page, differ, name)
		case !x.adds(cell, values):
			x.errorf(row.at, "stale row: it adds nothing to %s; delete it", name)
		default:
			for i, v := range values {
				if cell.Values[i] == nil {
					cell.Values[i] = v
				}
			}
			cell.Condition = joinNotes(cell.Condition, row.why.More)
			cell.Reason, cell.Source = joinNotes(cell.Reason, row.why.Reason), joinNotes(cell.Source, row.why.Source)
		}
	case Disputes:
		switch {
		case cell.Answer == "":
			x.errorf(row.at, "%s has no answer to dispute; give an answer", name)
		case cell.Answer == row.answer && differ == "":
			x.errorf(row.at, "stale row: %s is already %s; delete it", name, row.answer)
		default:
			cell.Note = joinNotes(cell.Note,
				fmt.Sprintf("another source says %s: %s (%s)", describe(row.answer, x.stated(values)), row.why.Reason,
					row.why.Source))
		}
	case Reads:
		if cell.Answer == "" {
			x.errorf(row.at, "%s has no answer to interpret; give an answer", name)
		}
		cell.Note = joinNotes(cell.Note, fmt.Sprintf("%s (%s)", row.why.Reason, row.why.Source))
	}
}

// describe formats an answer with its values.
func describe(a Answer, values string) string {
	if values == "" {
		return string(a)
	}
	return string(a) + " with " + values
}

// stated formats the values of a row.
func (x *gridResolver) stated(values []Value) string {
	all := ""
	for i, v := range values {
		if v != nil {
			all = joinNotes(all, x.g.Values[i].Go+" = "+v.String())
		}
	}
	return all
}

// differ returns the name and value of the first value of a cell that differs from the row's, or "".
func (x *gridResolver) differ(cell *Cell, values []Value) string {
	all := ""
	for i, v := range values {
		if v != nil && cell.Values[i] != nil && !slices.Equal(v, cell.Values[i]) {
			all = joinNotes(all, x.g.Values[i].Go+" = "+cell.Values[i].String())
		}
	}
	return all
}

// adds reports whether a row has a value that the cell lacks.
func (x *gridResolver) adds(cell *Cell, values []Value) bool {
	for i, v := range values {
		if v != nil && cell.Values[i] == nil {
			return true
		}
	}
	return false
}

// finish marks the cells without an answer as unspecified, and rejects cells that lack a value.
func (x *gridResolver) finish() {
	rejected := len(x.errs) > 0 // a rejected row may have the missing value
	for i := range x.g.Cells {
		cell := &x.g.Cells[i]
		if cell.Answer == "" {
			cell.Validity = Validity{Answer: Unspecified, Reason: noSource, Source: x.g.Source()}
		}
		for j, v := range cell.Values {
			if v == nil && !rejected && (cell.Answer == Yes || cell.Answer == Capability) {
				x.errorf(x.f.path(), "%s is %s but has no %s; add it", strings.Join(x.g.Combination(i), " × "),
					cell.Answer, x.g.Values[j].Go)
			}
		}
	}
}
