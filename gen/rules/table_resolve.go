package rules

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// gridBases are the grids that a man page fills first. Each sets the cells that the page speaks of; the file's rows come after.
var gridBases = map[string]func(r *model.Release, f *GridFile, g *Grid) error{
	"modify_qp": modifyQPBase,
	"wr_post":   wrPostBase,
}

// ResolveGrids fills the grids of a package for a release. Rows that cannot be applied are errors; the grids are then given as they
// are without them.
func ResolveGrids(r *model.Release, pkg string, files []*GridFile) ([]*Grid, error) {
	types := map[string]*GridType{}
	var errs []error
	for _, f := range files {
		for _, t := range f.Types {
			if types[t.Name] != nil {
				errs = append(errs, fmt.Errorf("gen/rules/tables/%s.txt: the list or set %s stands in another file already", f.Name, t.Name))
			}
			types[t.Name] = t
		}
	}
	var all []*Grid
	for _, f := range files {
		if f.Package != pkg {
			continue
		}
		g, err := f.resolve(r, types, gridBases[f.Name])
		errs = append(errs, err)
		if g != nil {
			all = append(all, g)
		}
	}
	return all, errors.Join(append(errs, flagChecks(all))...)
}

// gridResolver applies the rows of a file to the cells of its grid.
type gridResolver struct {
	f      *GridFile
	g      *Grid
	stands map[string]string // cell and what is stated → where
	errs   []error
}

func (f *GridFile) resolve(r *model.Release, types map[string]*GridType, base func(*model.Release, *GridFile, *Grid) error) (*Grid, error) {
	g := f.Grid
	g.Release, g.StandIns, g.Dims, g.Values = r.Name, r.StandIns, nil, slices.Clone(f.Values)
	x := &gridResolver{f: f, g: &g, stands: map[string]string{}}
	for _, d := range f.dims {
		x.dim(r, types, d)
		if d.kind == "list" {
			g.Own = append(g.Own, types[d.of])
		}
	}
	for i := range g.Values {
		v := &g.Values[i]
		if v.Type == "" {
			continue
		}
		if t := types[v.Type]; t != nil {
			v.names = t.names()
			g.Own = append(g.Own, t)
		} else {
			v.Type, v.names = "enum "+v.Type, enumerators(r, v.Type)
		}
		if v.names == nil {
			x.errorf(f.path(), "value %s: %s is no enum of %s and no @ list or @ set", v.Go, v.Type, r.Name)
		}
	}
	if len(x.errs) > 0 {
		return nil, errors.Join(x.errs...)
	}
	g.Cells = make([]Cell, g.Size())
	for i := range g.Cells {
		g.Cells[i].Values = make([]Value, len(g.Values))
	}
	if base != nil {
		if err := base(r, f, &g); err != nil {
			return nil, unplannedError{f.Name, err}
		}
	}
	for _, reading := range f.readings {
		if !reading.used {
			x.errorf(reading.at, "stale correction: the page does not say %q; delete the line", reading.word)
		}
	}
	for _, row := range f.rows { // answers first, because disputes are about them
		if row.kind == Answers || row.kind == Agrees {
			x.row(row)
		}
	}
	for _, row := range f.rows {
		if row.kind == Disputes || row.kind == Reads {
			x.row(row)
		}
	}
	x.finish()
	return &g, errors.Join(x.errs...)
}

func (f *GridFile) path() string { return "gen/rules/tables/" + f.Name + ".txt" }

func (t *GridType) names() []string {
	var all []string
	for _, item := range t.Items {
		all = append(all, item.Prints)
	}
	return all
}

// enumerators are those of an enum, or nil where the release does not have it.
func enumerators(r *model.Release, tag string) []string {
	var all []string
	for i := range r.Headers {
		for _, e := range r.Headers[i].Enums {
			if e.Tag == tag {
				for _, n := range e.Enumerators {
					all = append(all, n.Name)
				}
				return all
			}
		}
	}
	return nil
}

func (x *gridResolver) errorf(at, format string, args ...any) {
	x.errs = append(x.errs, fmt.Errorf(at+": "+format, args...))
}

func (x *gridResolver) dim(r *model.Release, types map[string]*GridType, d gridDim) {
	dim := Dim{Param: d.param, What: d.what, Type: d.of, Flags: d.kind == "flag", Part: d.without != nil}
	if d.kind == "list" {
		if types[d.of] == nil || types[d.of].Set {
			x.errorf(d.at, "no @ list %s", d.of)
			return
		}
		dim.Names = types[d.of].names()
	} else {
		all, err := distinctEnumerators(r, d.of)
		if err != nil {
			x.errorf(d.at, "%v", err)
			return
		}
		dim.Type, dim.Names = "enum "+d.of, all
	}
	for _, name := range d.without {
		if !slices.Contains(dim.Names, name) {
			x.errorf(d.at, "%s has no %s to leave out", dim.Type, name)
		}
	}
	dim.Names = slices.DeleteFunc(slices.Clone(dim.Names), func(n string) bool { return slices.Contains(d.without, n) })
	x.g.Dims = append(x.g.Dims, dim)
}

// row applies a row to each of its cells.
func (x *gridResolver) row(row *gridRow) {
	known := make([][]string, len(row.items))
	for i, items := range row.items {
		for _, name := range items {
			name = x.prints(x.g.Dims[i].Type, name)
			if !slices.Contains(x.g.Dims[i].Names, name) {
				x.errorf(row.at, "%s is no %s of this table (%s)", name, x.g.Dims[i].What, x.g.Dims[i].Type)
				continue
			}
			known[i] = append(known[i], name)
		}
	}
	values := x.values(row)
	for n := range count(known) {
		x.state(row, pick(known, n), values)
	}
}

func count(items [][]string) int {
	n := 1
	for _, of := range items {
		n *= len(of)
	}
	return n
}

// pick is the nth combination, the last dimension running fastest.
func pick(items [][]string, n int) []string {
	names := make([]string, len(items))
	for i := len(items) - 1; i >= 0; i-- {
		names[i] = items[i][n%len(items[i])]
		n /= len(items[i])
	}
	return names
}

// values reads a row's columns.
func (x *gridResolver) values(row *gridRow) []Value {
	values := make([]Value, len(x.g.Values))
	for i, column := range row.values {
		v, err := x.read(&x.g.Values[i], column)
		if err != nil {
			x.errorf(row.at, "%s: %v", x.g.Values[i].Go, err)
		}
		values[i] = v
	}
	return values
}

// prints gives the name that an item of a @ list or @ set prints, where a file writes its Go name.
func (x *gridResolver) prints(typ, name string) string {
	for _, t := range x.g.Own {
		for _, item := range t.Items {
			if t.Name == typ && item.Go == name {
				return item.Prints
			}
		}
	}
	return name
}

func (x *gridResolver) read(d *ValueDef, column string) (Value, error) {
	switch {
	case column == "":
		return nil, nil
	case d.Kind == Text:
		return Value{column}, nil
	case d.Kind == Number:
		if _, err := strconv.ParseUint(column, 10, 32); err != nil {
			return nil, fmt.Errorf("%q is no number", column)
		}
		return Value{column}, nil
	case column == "none" && d.Kind != One:
		return Value{}, nil
	}
	given := names(column)
	for i := range given {
		given[i] = x.prints(d.Type, given[i])
		if name := given[i]; !slices.Contains(d.names, name) || slices.Contains(given[:i], name) {
			return nil, fmt.Errorf("%q is no further name of %s", given[i], d.Type)
		}
	}
	if d.Kind == One && len(given) != 1 {
		return nil, fmt.Errorf("want one of %s, not %d", d.Type, len(given))
	}
	if d.Kind == Mask { // the order of the header, so that equal masks are equal
		slices.SortFunc(given, func(a, b string) int { return slices.Index(d.names, a) - slices.Index(d.names, b) })
	}
	return given, nil
}

// state applies a row to one cell.
func (x *gridResolver) state(row *gridRow, combination []string, values []Value) {
	cell := x.g.At(combination...)
	name := strings.Join(combination, " × ")
	key := name + " answers"
	if row.kind != Answers {
		key = fmt.Sprintf("%s %s %s", name, row.kind, row.why.name)
	}
	if old := x.stands[key]; old != "" {
		x.errorf(row.at, "%s stands at %s already", name, old)
		return
	}
	x.stands[key] = row.at
	page := x.g.Source()
	differ := x.differ(cell, values)
	switch row.kind {
	case Answers:
		switch {
		case cell.Answer == row.answer && differ == "" && !x.adds(cell, values):
			x.errorf(row.at, "stale row: %s says %s about %s itself; delete the row, or write agrees", page, row.answer, name)
		case cell.Answer == row.answer && differ == "":
			x.errorf(row.at, "%s says %s about %s itself; write agrees, which adds the values", page, row.answer, name)
		case cell.Answer != "" && row.answer == Unspecified:
			x.errorf(row.at, "%s says %s about %s, so it is not unspecified; use disputed", page, cell.Answer, name)
		default:
			v := Validity{Answer: row.answer, Condition: row.why.condition, Reason: row.why.reason, Source: row.why.source}
			if cell.Answer != "" {
				v.Note = fmt.Sprintf("%s says %s: %s", cell.Source, said(cell.Answer, differ), cell.Reason)
			}
			*cell = Cell{Validity: v, Values: values}
		}
	case Agrees:
		switch {
		case cell.Answer == "":
			x.errorf(row.at, "%s says nothing about %s that could be agreed with; give an answer", page, name)
		case differ != "":
			x.errorf(row.at, "%s has %s for %s; use disputed, or answer", page, differ, name)
		case !x.adds(cell, values):
			x.errorf(row.at, "stale row: it adds nothing to %s; delete it", name)
		default:
			for i, v := range values {
				if cell.Values[i] == nil {
					cell.Values[i] = v
				}
			}
			cell.Condition = joinNotes(cell.Condition, row.why.condition)
			cell.Reason, cell.Source = joinNotes(cell.Reason, row.why.reason), joinNotes(cell.Source, row.why.source)
		}
	case Disputes:
		switch {
		case cell.Answer == "":
			x.errorf(row.at, "nothing is said about %s that could be disputed; give an answer", name)
		case cell.Answer == row.answer && differ == "":
			x.errorf(row.at, "stale row: %s is %s, so nothing is disputed; delete it", name, row.answer)
		default:
			cell.Note = joinNotes(cell.Note, fmt.Sprintf("another source says %s: %s (%s)", said(row.answer, x.stated(values)), row.why.reason, row.why.source))
		}
	case Reads:
		if cell.Answer == "" {
			x.errorf(row.at, "nothing is said about %s that could be read; give an answer", name)
		}
		cell.Note = joinNotes(cell.Note, fmt.Sprintf("%s (%s)", row.why.reason, row.why.source))
	}
}

// said is an answer with the values that go with it.
func said(a Answer, values string) string {
	if values == "" {
		return string(a)
	}
	return string(a) + " with " + values
}

// stated names the values of a row.
func (x *gridResolver) stated(values []Value) string {
	all := ""
	for i, v := range values {
		if v != nil {
			all = joinNotes(all, x.g.Values[i].Go+" = "+v.String())
		}
	}
	return all
}

// differ tells which values of a cell are others than a row's.
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

// finish answers the cells that nothing speaks of, and refuses those that lack a value.
func (x *gridResolver) finish() {
	refused := len(x.errs) > 0 // a value may be what a refused row would have stated
	for i := range x.g.Cells {
		cell := &x.g.Cells[i]
		if cell.Answer == "" {
			cell.Validity = Validity{Answer: Unspecified, Reason: noSource, Source: x.g.Source()}
		}
		for j, v := range cell.Values {
			if v == nil && !refused && (cell.Answer == Yes || cell.Answer == Capability) {
				x.errorf(x.f.path(), "%s is %s and has no %s; state it", strings.Join(x.g.Combination(i), " × "), cell.Answer, x.g.Values[j].Go)
			}
		}
	}
}
