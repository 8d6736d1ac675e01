// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// measuredType is the name of the generated Go type whose values are pairs of provider and kernel.
const measuredType = "Measurement"

// measuredTables lists the documented tables that are compared with measurements, and the table of measurements for
// each.
var measuredTables = []struct{ table, answers, name, fn, result, question, posted string }{
	{"post_send", "post_send", "post_send_measured", "PostSendMeasured", "PostSendResult",
		"Which operations did measured providers accept through ibv_post_send?", "posted with ibv_post_send"},
	{"wr_post", "wr_post", "wr_post_measured", "WRPostMeasured", "WRPostResult",
		"Which operations did measured providers accept through the ibv_wr builders?",
		"posted with its ibv_wr builder"},
	{"send_flags", "post_send", "send_flags_measured", "SendFlagMeasured", "SendFlagResult",
		"Which send flags did measured providers accept through ibv_post_send?", "posted with " +
			"ibv_post_send"},
	{"wr_flags", "wr_post", "wr_flags_measured", "WRFlagMeasured", "WRFlagResult",
		"Which send flags did measured providers accept through the ibv_wr builders?",
		"posted with its ibv_wr builder"},
}

// isMeasured reports whether a table is compared with measurements.
func isMeasured(table string) bool {
	for _, t := range measuredTables {
		if t.table == table {
			return true
		}
	}
	return false
}

// MeasuredGrids returns the measured tables that belong to documented ones among grids. A cell that differs from the
// documentation needs a row with the reason; a row for a cell that does not differ is an error.
func MeasuredGrids(all []*model.Measured, rows []*Disagreement, grids []*Grid) ([]*Grid, error) {
	if len(all) == 0 && len(rows) == 0 {
		return nil, nil
	}
	list := &GridType{Name: measuredType, Doc: "is a provider on a kernel where operations were measured."}
	for _, m := range sortMeasured(all) {
		if item := (GridItem{Go: measuredGo(m), Prints: m.Name(), Doc: m.Source}); !slices.Contains(list.Items, item) {
			list.Items = append(list.Items, item)
		}
	}
	var out []*Grid
	var errs []error
	for i, item := range list.Items {
		if i > 0 && list.Items[i-1].Prints == item.Prints {
			errs = append(errs, fmt.Errorf("headers/measured: %s was measured on both %s and %s; measure all of its "+
				"tables on one system", item.Prints, list.Items[i-1].Doc, item.Doc))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	tables := map[string]bool{}
	for _, t := range measuredTables {
		at := slices.IndexFunc(grids, func(g *Grid) bool { return g.Name == t.table })
		if at < 0 {
			continue
		}
		tables[t.table] = true
		what := "signaled, and without flags"
		if t.table != t.answers {
			what = "with a send flag and IBV_SEND_SIGNALED"
		}
		x := &measuredResolver{all: all, answers: t.answers, of: grids[at], rows: map[string]*Disagreement{}, g: &Grid{
			Name: t.name, Package: grids[at].Package, Release: grids[at].Release, StandIns: grids[at].StandIns,
			Pages: grids[at].Pages, Question: t.question,
			Func: t.fn,
			FuncDoc: fmt.Sprintf("returns the measured outcome of an operation, %s on a queue pair of a type: "+
				"%s. Note holds the documented answer if it differs; %s has all documented answers.",
				t.posted, what, grids[at].Func),
			Result: t.result, Doc: "is the measured outcome of an operation.",
			Values: []ValueDef{
				{Go: "Refused", Kind: Text,
					Doc: `the step that failed, create or post, and its errno: "post EINVAL"; or ""`},
				{Go: "Status", Kind: Text, Doc: `the status of the completion: "IBV_WC_SUCCESS"; or ""`},
			},
			Dims: append([]Dim{{Param: "on", What: "measurement", Type: measuredType, Names: list.names()}},
				grids[at].Dims...),
			Own: []*GridType{list},
		}}
		if len(out) == 0 {
			x.g.Types = x.g.Own
		}
		for _, row := range rows {
			if row.Table == t.table {
				x.take(row)
			}
		}
		x.fill()
		errs = append(errs, x.errs...)
		out = append(out, x.g)
	}
	for _, row := range rows {
		if !tables[row.Table] {
			errs = append(errs, fmt.Errorf("%s: table %s is not measured", row.At, row.Table))
		}
	}
	return out, errors.Join(errs...)
}

// sortMeasured sorts by provider, then kernel.
func sortMeasured(all []*model.Measured) []*model.Measured {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *model.Measured) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), compareKernels(a.Kernel, b.Kernel),
			cmp.Compare(a.Table, b.Table))
	})
	return all
}

// compareKernels orders "6.1" before "6.12".
func compareKernels(a, b string) int {
	parts := func(kernel string) (all []int) {
		for _, part := range strings.Split(kernel, ".") {
			n, _ := strconv.Atoi(part) // model.ParseMeasured has checked the numbers
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(parts(a), parts(b))
}

// measuredGo returns the Go name of a provider on a kernel.
func measuredGo(m *model.Measured) string {
	return "Measured" + strings.ToUpper(m.Provider) + "_" + strings.ReplaceAll(m.Kernel, ".", "_")
}

// measuredNames returns the exported names that measured tables add.
func measuredNames(all []*model.Measured) []string {
	names := []string{measuredType}
	for _, t := range measuredTables {
		names = append(names, t.fn, t.result)
	}
	for _, m := range all {
		if name := measuredGo(m); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// measuredResolver fills one table.
type measuredResolver struct {
	all     []*model.Measured
	answers string // table of measurements
	of      *Grid  // the documented table
	g       *Grid
	rows    map[string]*Disagreement // by cell
	errs    []error
}

// flags reports whether the table has send flags.
func (x *measuredResolver) flags() bool { return len(x.of.Dims) == 3 }

func (x *measuredResolver) errorf(format string, args ...any) {
	x.errs = append(x.errs, fmt.Errorf(format, args...))
}

// take assigns a row to its cells.
func (x *measuredResolver) take(row *Disagreement) {
	if len(row.Cells) != len(x.g.Dims) {
		x.errorf("%s: %s: %d columns of names, want %d", row.At, row.Table, len(row.Cells), len(x.g.Dims))
		return
	}
	for i, d := range x.g.Dims {
		for _, name := range row.Cells[i] {
			switch {
			case slices.Contains(d.Names, name):
			case i == 0:
				x.errorf("%s: %s was not measured; headers/measured has %s", row.At, name, strings.Join(d.Names, ", "))
			default:
				x.errorf("%s: %s has no %s %s", row.At, x.of.Release, d.What, name)
			}
		}
	}
	for n := range count(row.Cells) {
		names := pick(row.Cells, n)
		key := strings.Join(names, " × ")
		if x.rows[key] != nil {
			x.errorf("%s: duplicate %s: %s, first at %s", row.At, row.Table, key, x.rows[key].At)
			continue
		}
		x.rows[key] = row
	}
}

// fill fills in every cell.
func (x *measuredResolver) fill() {
	x.g.Cells = make([]Cell, x.g.Size())
	var sources []string
	for i, name := range x.g.Dims[0].Names {
		source := "measured: " + x.g.Own[0].Items[i].Doc
		sources = append(sources, source)
		outcomes := x.outcomes(name)
		for n := range x.of.Cells {
			of := x.of.Combination(n)
			c := x.g.At(append([]string{name}, of...)...)
			x.cell(c, name, of, source, outcomes[strings.Join(of, " × ")], x.of.Cells[n].Validity)
		}
	}
	x.g.Cited = strings.Join(sources, "; ")
}

// cell fills in one cell and compares it with the documentation.
func (x *measuredResolver) cell(c *Cell, name string, of []string, source string, o *outcome, documented Validity) {
	key := strings.Join(append([]string{name}, of...), " × ")
	row := x.rows[key]
	if o == nil || o.itself {
		why := "it was not measured"
		if o != nil {
			why = "the operation itself does not work"
		}
		*c = Cell{Validity{Answer: Unspecified, Reason: why, Source: source}, make([]Value, len(x.g.Values))}
		if row != nil {
			x.errorf("%s: stale row: %s: %s: %s; delete it", row.At, x.of.Name, key, why)
		}
		return
	}
	statement, answer := "works", Yes
	if !o.works {
		statement, answer = "fails", No
	}
	*c = Cell{Validity{Answer: answer, Reason: o.reason, Source: source}, []Value{text(o.refused), text(o.status)}}
	disagree := documented.Answer == Yes && !o.works || documented.Answer == Capability && !o.works ||
		documented.Answer == No && o.works || documented.Answer == Elsewhere && o.works
	text := fmt.Sprintf("%s says %s", documented.Source, documented.Answer)
	switch {
	case disagree && row == nil:
		x.errorf("%s: %s: %s: %s, but it %s (%s); add a row with the reason: %s | %s | %s | label",
			disagreementsFile, x.of.Name, key, text, statement, o.reason, x.of.Name, strings.Join(append([]string{name},
				of...), " | "), statement)
	case disagree && row.Statement != statement:
		x.errorf("%s: %s: %s: the row is wrong: it %s (%s)", row.At, x.of.Name, key, statement, o.reason)
	case disagree:
		c.Note = fmt.Sprintf("%s: %s; the reason: %s (%s)", text, documented.Reason, row.Reason, row.Source)
	case row != nil:
		x.errorf("%s: stale row: %s: %s: %s, and it %s, so there is no disagreement; delete "+
			"it", row.At, x.of.Name, key, text,
			statement)
	}
}

// text returns s as a value; "" becomes an empty value.
func text(s string) Value {
	if s == "" {
		return Value{}
	}
	return Value{s}
}

// outcome is the outcome of a measured operation.
type outcome struct {
	works                   bool
	itself                  bool // the operation also fails without the send flag
	refused, status, reason string
}

// outcomes returns the outcomes of a provider on a kernel, by cell of the documented table.
func (x *measuredResolver) outcomes(name string) map[string]*outcome {
	all := map[string]*outcome{}
	key := func(names ...string) string { return strings.Join(names, " × ") }
	for _, m := range x.all {
		if m.Name() != name || m.Table != x.answers && m.Table != "create_qp" {
			continue
		}
		for _, row := range m.Rows {
			qpt, opcode := "IBV_QPT_"+m.At(row, "qp_type"), "IBV_WR_"+m.At(row, "opcode")
			if !slices.Contains(x.of.Dims[0].Names, qpt) {
				x.errorf("headers/measured/%s: %s has no %s %s", m.File(), x.of.Release, x.of.Dims[0].What, qpt)
				continue
			}
			o := outcomeOf(m, row)
			if m.Table == "create_qp" {
				for _, opcode := range x.of.Dims[1].Names {
					if cell := key(qpt, opcode); o != nil && all[cell] == nil {
						all[cell] = o
					}
				}
				continue
			}
			if !slices.Contains(x.of.Dims[1].Names, opcode) {
				x.errorf("headers/measured/%s: %s has no %s %s", m.File(), x.of.Release, x.of.Dims[1].What, opcode)
				continue
			}
			if flag, more := strings.CutPrefix(m.At(row, "flags"), "SIGNALED|"); more {
				all[key(qpt, opcode, "IBV_SEND_"+flag)] = o
				continue
			}
			// The signaled row follows the row without flags and has more details. It must not hide a failure of that
			// row.
			if cell := key(qpt, opcode); all[cell] == nil || all[cell].works || !o.works {
				all[cell] = o
			}
		}
	}
	if x.flags() {
		for n := range x.of.Cells {
			of := x.of.Combination(n)
			if plain := all[key(of[0], of[1])]; plain != nil && !plain.works {
				all[key(of...)] = &outcome{itself: true}
			}
		}
	}
	return all
}

// outcomeOf parses a row. It returns nil if a queue pair was created, since creation does not prove that operations
// work.
func outcomeOf(m *model.Measured, row []string) *outcome {
	create, post, status, flags := m.At(row, "create"), m.At(row, "post"), m.At(row, "wc_status"), m.At(row, "flags")
	data, state := m.At(row, "data"), m.At(row, "qp_state")
	with := "signaled"
	if flags == "none" {
		with = "without flags"
	} else if _, more := strings.CutPrefix(flags, "SIGNALED|"); more {
		with = "with " + flags
	}
	o := &outcome{}
	if status != "none" && status != "-" && status != "" {
		o.status = "IBV_WC_" + status
	}
	switch {
	case m.Table == "create_qp" && create == "0":
		return nil
	case m.Table == "create_qp":
		o.refused, o.reason = "create "+create, "no such queue pair can be created: "+create
	case create != "" && create != "0":
		o.refused, o.reason = "create "+create, "no queue pair can be created for it: "+create
	case post != "0":
		o.refused, o.reason = "post "+post, with+", posting gives "+post
	case o.status == "" && flags == "none" && state == "RTS" && (data == "ok" || data == "-"):
		o.works, o.reason = true, "it works without flags"
	case o.status != "IBV_WC_SUCCESS":
		o.reason = with + ", it completes with " + cmp.Or(o.status, "nothing")
	case data != "ok" && data != "-" || state != "RTS":
		o.reason = fmt.Sprintf("%s, it completes with %s, the data is %s and the queue pair in %s", with, o.status,
			data, state)
	case strings.HasPrefix(with, "with "):
		o.works, o.reason = true, "it works "+with
	default:
		o.works, o.reason = true, "it works, signaled and without flags"
	}
	return o
}
