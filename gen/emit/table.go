// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/grids"
	"github.com/goverbs/goverbs/gen/rules"
)

// answers lists the Go constants for answers, in the order of their values.
var answers = []struct {
	answer rules.Answer
	name   string
	about  string
}{
	{rules.Unspecified, "AnswerUnspecified", "no source defines it, or the provider decides"},
	{rules.Yes, "AnswerYes", ""},
	{rules.No, "AnswerNo", ""},
	{rules.Elsewhere, "AnswerNotInVerb",
		"the operation is posted with another function, which Reason names"},
	{rules.Capability, "AnswerNeedsCapability",
		"yes if the device has the capability that Condition names"},
}

func answerName(a rules.Answer) string {
	for _, one := range answers {
		if one.answer == a {
			return one.name
		}
	}
	return string(a) // unknown answer: the printed package does not compile
}

// answerTypes prints the result types of the package's tables. origin is the import path of a package that already
// declares them, or "".
func answerTypes(f *jen.File, origin string) {
	if origin != "" {
		comment(f, "Answer and Validity alias those of the imported package, so that all tables share one result "+
			"type.")
		f.Type().Defs(jen.Id("Answer").Op("=").Qual(origin, "Answer"),
			jen.Id("Validity").Op("=").Qual(origin, "Validity"))
		comment(f, "Values of Answer.")
		var consts []jen.Code
		for _, a := range answers {
			consts = append(consts, jen.Id(a.name).Op("=").Qual(origin, a.name))
		}
		f.Const().Defs(consts...)
		return
	}
	comment(f, "Answer is a table's answer for one combination.")
	f.Type().Id("Answer").Uint8()
	comment(f, "Values of Answer.")
	var consts []jen.Code
	var all []namedValue
	for i, a := range answers {
		def := jen.Id(a.name).Id("Answer").Op("=").Lit(i)
		if a.about != "" {
			def.Comment("// " + a.about)
		}
		consts = append(consts, def)
		all = append(all, namedValue{a.name, grids.Answer(a.answer)})
	}
	f.Const().Defs(consts...)
	texts(f, "Answer", "Answer", false, all)
	comment(f, "Validity is a table's answer, with its reason and source.")
	f.Type().Id("Validity").Struct(
		jen.Id("Answer").Id("Answer"),
		jen.Id("Condition").String().Comment("// further condition of AnswerYes and AnswerNeedsCapability, or \"\""),
		jen.Id("Reason").String(),
		jen.Id("Source").String().Comment("// man page and release, or another source"),
		jen.Id("Note").String().Comment("// disagreement of another source, or reading of an ambiguous page; or \"\""),
	)
}

// grids prints the tables of the package, each to its own file.
func (e *emitter) grids() {
	if len(e.plan.Grids) == 0 {
		return
	}
	e.file("table.go", "", func(f *jen.File) { answerTypes(f, e.plan.Shared) })
	for _, g := range e.plan.Grids {
		e.file("table_"+g.Name+".go", "", func(f *jen.File) {
			if e.err == nil {
				e.err = Grid(f, e.plan.Package, g)
			}
		})
	}
}

// Grid prints a table: its enumerations and constants, and lookups that neither allocate nor use a map. The
// enumerations of headers are printed by enums; pkg provides their Go names.
func Grid(f *jen.File, pkg rules.Package, g *rules.Grid) error {
	t := &gridTable{f: f, pkg: pkg, g: g, base: unexported(g.Func), index: map[string]int{},
		positions: map[string]string{}}
	for i := range g.Cells {
		t.number(&g.Cells[i])
	}
	if len(t.distinct) > math.MaxUint16+1 {
		return fmt.Errorf("%s: %d different answers do not fit cells of 16 bits", g.Name, len(t.distinct))
	}
	for _, typ := range g.Types {
		t.ownType(typ)
	}
	t.result()
	t.lookup()
	t.lists()
	t.check()
	t.tables()
	for i := range g.Dims {
		t.position(i)
	}
	return nil
}

type gridTable struct {
	f         *jen.File
	pkg       rules.Package
	g         *rules.Grid
	base      string         // prefix of unexported names
	index     map[string]int // cell → index among the distinct cells
	distinct  []*rules.Cell
	cells     []int             // index of the cell of every combination
	positions map[string]string // items of a dimension → function
}

// number assigns an index to a cell, unless an equal cell already has one.
func (t *gridTable) number(c *rules.Cell) {
	key := fmt.Sprintf("%q", []any{c.Validity, c.Values, isNil(c.Values)})
	n, known := t.index[key]
	if !known {
		n = len(t.distinct)
		t.index[key] = n
		t.distinct = append(t.distinct, c)
	}
	t.cells = append(t.cells, n)
}

func isNil(values []rules.Value) (nils []bool) {
	for _, v := range values {
		nils = append(nils, v == nil)
	}
	return nils
}

// man returns the citation of the man pages for a comment.
func (t *gridTable) man() string {
	var all []string
	for _, page := range t.g.Pages {
		all = append(all, strings.TrimSuffix(page, ".3")+"(3)")
	}
	if all == nil {
		return "Man: none"
	}
	return "Man: " + strings.Join(all, ", ")
}

// goType returns the Go name of an enum, or of a type that the table declares.
func (t *gridTable) goType(typ string) string {
	if tag, ok := strings.CutPrefix(typ, "enum "); ok {
		return t.pkg.TypeName(tag)
	}
	return typ
}

// goConst returns the Go name of a constant of a type.
func (t *gridTable) goConst(typ, name string) string {
	if strings.HasPrefix(typ, "enum ") {
		return t.pkg.ConstName(name)
	}
	for _, own := range t.g.Own {
		if own.Name == typ {
			for _, item := range own.Items {
				if item.Prints == name {
					return item.Go
				}
			}
		}
	}
	return name
}

// ownType prints an enumeration or a set of flags that the table declares.
func (t *gridTable) ownType(typ *rules.GridType) {
	f := t.f
	comment(f, wrap(typ.Name+" "+typ.Doc)+"\n\n"+t.man())
	f.Type().Id(typ.Name).Uint32()
	comment(f, "Values of "+typ.Name+".")
	var consts []jen.Code
	var all []namedValue
	for i, item := range typ.Items {
		value := jen.Lit(i)
		if typ.Set {
			value = jen.Lit(1 << i)
		}
		def := jen.Id(item.Go).Id(typ.Name).Op("=").Add(value)
		if item.Doc != "" {
			def.Comment("// " + item.Doc)
		}
		consts = append(consts, def)
		all = append(all, namedValue{item.Go, item.Prints})
	}
	f.Const().Defs(consts...)
	texts(f, typ.Name, typ.Name, typ.Set, all)
}

// result prints the result type of a table with values.
func (t *gridTable) result() {
	if len(t.g.Values) == 0 {
		return
	}
	fields := []jen.Code{jen.Id("Validity")}
	for i := range t.g.Values {
		v := &t.g.Values[i]
		doc := v.Doc
		if v.Kind == rules.One && strings.HasPrefix(v.Type, "enum ") { // the zero value is a valid enumerator
			doc += "; valid only if Answer is AnswerYes or AnswerNeedsCapability"
		}
		fields = append(fields, jen.Id(v.Go).Add(t.valueType(v)).Comment("// "+doc))
	}
	comment(t.f, wrap(t.g.Result+" "+t.g.Doc)+"\n\n"+t.man())
	t.f.Type().Id(t.g.Result).Struct(fields...)
}

func (t *gridTable) valueType(v *rules.ValueDef) *jen.Statement {
	switch v.Kind {
	case rules.Number:
		return jen.Int()
	case rules.Text:
		return jen.String()
	case rules.List:
		return jen.Index().Id(t.goType(v.Type))
	default:
		return jen.Id(t.goType(v.Type))
	}
}

// value prints a value; it returns nil for a zero value.
func (t *gridTable) value(d *rules.ValueDef, v rules.Value) *jen.Statement {
	if len(v) == 0 {
		return nil
	}
	var consts []jen.Code
	for _, name := range v {
		consts = append(consts, jen.Id(t.goConst(d.Type, name)))
	}
	switch d.Kind {
	case rules.Number:
		return jen.Op(v[0])
	case rules.Text:
		return jen.Lit(v[0])
	case rules.List:
		return t.valueType(d).Values(consts...)
	default:
		mask := &jen.Statement{}
		for i, c := range consts {
			if i > 0 {
				mask.Op("|")
			}
			mask.Add(c)
		}
		return mask
	}
}

// tables prints the distinct answers and the cells, which are indexes into the answers.
func (t *gridTable) tables() {
	var values []jen.Code
	for _, c := range t.distinct {
		d := validity(c.Validity)
		if len(t.g.Values) > 0 {
			d = jen.Dict{jen.Id("Validity"): jen.Id("Validity").Values(d)}
			for i := range t.g.Values {
				if v := t.value(&t.g.Values[i], c.Values[i]); v != nil {
					d[jen.Id(t.g.Values[i].Go)] = v
				}
			}
		}
		values = append(values, jen.Line().Values(d))
	}
	comment(t.f, t.base+"Answers lists the distinct answers; cells are indexes into it.")
	t.f.Var().Id(t.base + "Answers").Op("=").Index(jen.Op("...")).Id(t.g.Result).Values(append(values, jen.Line())...)
	var what []string
	size := &jen.Statement{}
	for _, d := range t.g.Dims {
		what = append(what, d.What)
		size.Index(jen.Lit(len(d.Names)))
	}
	cell := "uint8"
	if len(t.distinct) > math.MaxUint8+1 {
		cell = "uint16"
	}
	comment(t.f, t.base+"Cells is indexed by "+strings.Join(what, ", then ")+".")
	rows, _ := t.nested(0, t.cells)
	t.f.Var().Id(t.base + "Cells").Op("=").Add(size).Id(cell).Values(rows...)
}

// nested prints the cells of a dimension and of those after it.
func (t *gridTable) nested(dim int, cells []int) ([]jen.Code, []int) {
	d := t.g.Dims[dim]
	var all []jen.Code
	for _, name := range d.Names {
		if dim == len(t.g.Dims)-1 {
			all = append(all, jen.Lit(cells[0]))
			cells = cells[1:]
			continue
		}
		var row []jen.Code
		row, cells = t.nested(dim+1, cells)
		all = append(all, jen.Line().Comment("// "+t.goConst(d.Type, name)).Line().Values(row...))
	}
	if dim < len(t.g.Dims)-1 {
		all = append(all, jen.Line())
	}
	return all, cells
}

func validity(v rules.Validity) jen.Dict {
	d := jen.Dict{jen.Id("Answer"): jen.Id(answerName(v.Answer))}
	for name, text := range map[string]string{"Condition": v.Condition, "Reason": v.Reason, "Source": v.Source,
		"Note": v.Note} {
		if text != "" {
			d[jen.Id(name)] = jen.Lit(text)
		}
	}
	return d
}

// position prints the function that maps a dimension's constants to indexes, and unknown values to -1.
func (t *gridTable) position(i int) {
	d := t.g.Dims[i]
	name := t.positionName(i)
	if _, printed := t.positions[name]; printed {
		return
	}
	t.positions[name] = d.Type
	var cases []jen.Code
	for n, c := range d.Names {
		cases = append(cases, jen.Case(jen.Id(t.goConst(d.Type, c))).Block(jen.Return(jen.Lit(n))))
	}
	comment(t.f, name+" returns the index of v in the table, or -1.")
	t.f.Func().Id(name).Params(jen.Id("v").Id(t.goType(d.Type))).Int().Block(
		jen.Switch(jen.Id("v")).Block(cases...),
		jen.Return(jen.Lit(-1)),
	)
}

// positionName returns the name of that function. Dimensions with the same items share a function.
func (t *gridTable) positionName(i int) string {
	d := t.g.Dims[i]
	first := slices.IndexFunc(t.g.Dims,
		func(o rules.Dim) bool { return o.Type == d.Type && slices.Equal(o.Names, d.Names) })
	p := t.g.Dims[first].Param
	return t.base + rules.FieldName(p)
}
