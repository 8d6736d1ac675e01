// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rows"
)

// gridSet holds the resolved grids of a release by name.
type gridSet map[string]*Grid

// gridBase fills in a grid from a man page and other grids, before the rows of the file are applied.
type gridBase struct {
	fill  func(r *model.Release, f *GridFile, g *Grid, others gridSet) error
	needs []string // grids to resolve first
}

var gridBases = map[string]gridBase{
	"modify_qp":         {fill: modifyQPBase},
	"wr_post":           {fill: wrPostBase},
	"post_send":         {fill: postSendBase},
	"send_flag_types":   {fill: flagTypesBase},
	"send_flag_opcodes": {fill: flagOpcodesBase},
	"send_flags":        {sendFlagsBase, []string{"post_send", "send_flag_types", "send_flag_opcodes"}},
	"wr_flags":          {wrFlagsBase, []string{"wr_post", "send_flag_types", "send_flag_opcodes"}},
}

// ResolveGrids resolves the grids of a package for a release, including parts. Rows that cannot be applied are reported
// as errors and left out of the grids.
func ResolveGrids(r *model.Release, pkg string, files []*GridFile) ([]*Grid, error) {
	types := map[string]*GridType{}
	var errs []error
	for _, f := range files {
		for _, t := range f.Types {
			if types[t.Name] != nil {
				errs = append(errs, fmt.Errorf("gen/rules/tables/%s.txt: the list or set %s is already in another "+
					"file", f.Name, t.Name))
			}
			types[t.Name] = t
		}
	}
	done := gridSet{}
	for _, withNeeds := range []bool{false, true} {
		for _, f := range files {
			base := gridBases[f.Name]
			if f.Package != pkg || (base.needs != nil) != withNeeds ||
				slices.ContainsFunc(base.needs, func(n string) bool { return done[n] == nil }) {
				continue
			}
			g, err := f.resolve(r, types, base.fill, done)
			errs = append(errs, err)
			if g != nil {
				done[f.Name] = g
			}
		}
	}
	var all []*Grid
	for _, f := range files {
		if g := done[f.Name]; g != nil {
			all = append(all, g)
		}
	}
	errs = append(errs, firstLookups(all), flagChecks(all))
	if errors.Join(errs...) == nil {
		errs = append(errs, staleParts(all, done))
	}
	return all, errors.Join(errs...)
}

// firstLookups finds the grids that answer for an unknown last item of others; see Grid.First.
func firstLookups(grids []*Grid) error {
	var errs []error
	for _, g := range grids {
		if g.First == "" {
			continue
		}
		i := slices.IndexFunc(grids, func(o *Grid) bool { return o.Func == g.First })
		if i < 0 || len(grids[i].Dims) != len(g.Dims)-1 {
			errs = append(errs, fmt.Errorf("gen/rules/tables/%s.txt: @ first %s is not a lookup of all dimensions but "+
				"the last", g.Name, g.First))
			continue
		}
		g.FirstHasValues = len(grids[i].Values) > 0
	}
	return errors.Join(errs...)
}

// staleParts rejects rows of parts that have no effect on any table, after those tables are resolved.
func staleParts(grids []*Grid, done gridSet) error {
	var errs []error
	for _, g := range grids {
		if g.Part == nil || slices.ContainsFunc(g.Part, func(of string) bool { return done[of] == nil }) {
			continue
		}
		for n := range g.Cells {
			if at := g.stated[&g.Cells[n]]; at != "" && !g.shown[&g.Cells[n]] {
				errs = append(errs, fmt.Errorf("%s: stale row: it has no effect on %s; delete it", at,
					strings.Join(g.Combination(n), " × ")))
			}
		}
	}
	return errors.Join(errs...)
}

// gridResolver applies the rows of a file to the cells of its grid.
type gridResolver struct {
	f      *GridFile
	g      *Grid
	stands map[string]string // cell and statement → file:line
	errs   []error
}

func (f *GridFile) resolve(
	r *model.Release, types map[string]*GridType, base func(*model.Release, *GridFile, *Grid,
		gridSet) error, others gridSet,
) (*Grid, error) {
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
			x.errorf(f.path(), "value %s: %s is neither an enum of %s nor a @ list or @ set", v.Go, v.Type, r.Name)
		}
	}
	if len(x.errs) > 0 {
		return nil, errors.Join(x.errs...)
	}
	g.Cells, g.stated, g.shown = make([]Cell, g.Size()), map[*Cell]string{}, map[*Cell]bool{}
	for i := range g.Cells {
		g.Cells[i].Values = make([]Value, len(g.Values))
	}
	if base != nil {
		if err := base(r, f, &g, others); err != nil {
			return nil, unplannedError{f.Name, err}
		}
	}
	for _, reading := range f.readings {
		if !reading.row.Fired {
			x.errorf(reading.row.At, "stale correction: the page does not have %q; delete the line", reading.word)
		}
	}
	for _, row := range f.rows { // answers first, since disputes refer to them
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

// distinctEnumerators returns the enumerators of an enum. It rejects repeated values, which would merge two rows.
func distinctEnumerators(r *model.Release, tag string) ([]string, error) {
	for i := range r.Headers {
		for _, e := range r.Headers[i].Enums {
			if e.Tag != tag {
				continue
			}
			var names []string
			owner := map[model.Int]string{}
			for _, n := range e.Enumerators {
				if owner[n.Value] != "" {
					return nil, fmt.Errorf("model of %s: enum %s: %s repeats the value of %s; add a rule for "+
						"the one to use", r.Name, tag, n.Name, owner[n.Value])
				}
				owner[n.Value] = n.Name
				names = append(names, n.Name)
			}
			return names, nil
		}
	}
	return nil, fmt.Errorf("model of %s: it has no enum %s", r.Name, tag)
}

// enumerators returns the enumerators of an enum, or nil if the release lacks it.
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

// UnknownName is the error for a row with a name that the release lacks.
type UnknownName struct{ At, Name, What, Of string }

func (e *UnknownName) Error() string {
	return fmt.Sprintf("%s: unknown %s %s (%s)", e.At, e.What, e.Name, e.Of)
}

// row applies a row to each of its cells.
func (x *gridResolver) row(row *gridRow) {
	known := make([][]string, len(row.items))
	for i, items := range row.items {
		for _, name := range items {
			name = x.prints(x.g.Dims[i].Type, name)
			if !slices.Contains(x.g.Dims[i].Names, name) {
				x.errs = append(x.errs, &UnknownName{At: row.at, Name: name, What: x.g.Dims[i].What,
					Of: x.g.Dims[i].Type})
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

// pick returns the nth combination. The last dimension varies fastest.
func pick(items [][]string, n int) []string {
	names := make([]string, len(items))
	for i := len(items) - 1; i >= 0; i-- {
		names[i] = items[i][n%len(items[i])]
		n /= len(items[i])
	}
	return names
}

// values parses the values of a row.
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

// prints returns the text of an item of a @ list or @ set, given its Go name or text.
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
			return nil, fmt.Errorf("%q is not a number", column)
		}
		return Value{column}, nil
	case column == "none" && d.Kind != One:
		return Value{}, nil
	}
	given := rows.List(column)
	for i := range given {
		given[i] = x.prints(d.Type, given[i])
		if name := given[i]; !slices.Contains(d.names, name) || slices.Contains(given[:i], name) {
			return nil, fmt.Errorf("%q is repeated, or not a name of %s", given[i], d.Type)
		}
	}
	if d.Kind == One && len(given) != 1 {
		return nil, fmt.Errorf("want one of %s, not %d", d.Type, len(given))
	}
	if d.Kind == Mask { // in the order of the header, so that equal masks have equal text
		slices.SortFunc(given, func(a, b string) int { return slices.Index(d.names, a) - slices.Index(d.names, b) })
	}
	return given, nil
}
