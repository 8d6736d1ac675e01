// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"path"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/rules"
)

// params returns the parameters of the lookup, without the one at index skip; -1 skips none.
func (t *gridTable) params(skip int) []jen.Code {
	var all []jen.Code
	for i, d := range t.g.Dims {
		if i != skip {
			all = append(all, jen.Id(d.Param).Id(t.goType(d.Type)))
		}
	}
	return all
}

func (t *gridTable) arguments(n int) []jen.Code {
	var all []jen.Code
	for _, d := range t.g.Dims[:n] {
		all = append(all, jen.Id(d.Param))
	}
	return all
}

// lookup prints the function of the table, and the function that returns all its values.
func (t *gridTable) lookup() {
	g, f := t.g, t.f
	comment(f, wrap(g.Func+" "+g.FuncDoc+
		" The result for unknown values is AnswerUnspecified. It does not allocate.")+"\n\n"+t.man())
	var body []jen.Code
	cell := jen.Id(t.base + "Cells")
	for i, d := range g.Dims {
		at := "at" + rules.FieldName(d.Param)
		body = append(body, jen.Id(at).Op(":=").Id(t.positionName(i)).Call(jen.Id(d.Param)))
		cell.Index(jen.Id(at))
	}
	for i, d := range g.Dims {
		at := jen.Id("at" + rules.FieldName(d.Param))
		var unknown []jen.Code
		if g.First != "" && i == len(g.Dims)-1 {
			first := jen.Id(g.First).Call(t.arguments(i)...)
			if g.FirstHasValues {
				first.Dot("Validity")
			}
			unknown = append(unknown,
				jen.If(jen.Id("v").Op(":=").Add(first),
					jen.Id("v").Dot("Answer").Op("!=").Id("AnswerYes")).Block(jen.Return(jen.Id("v"))))
		}
		unknown = append(unknown, jen.Return(t.unknown(d)))
		body = append(body, jen.If(at.Op("<").Lit(0)).Block(unknown...))
	}
	body = append(body, jen.Return(jen.Id(t.base+"Answers").Index(cell)))
	f.Func().Id(g.Func).Params(t.params(-1)...).Id(g.Result).Block(body...)

	if g.All.Func == "" {
		return
	}
	comment(f, wrap(g.All.Func+" "+g.All.Doc+
		" ok reports whether the answer is AnswerYes or AnswerNeedsCapability. It does not allocate.")+"\n\n"+t.man())
	var results, values []jen.Code
	for i := range g.Values {
		v := &g.Values[i]
		results = append(results, jen.Id(unexported(v.Go)).Add(t.valueType(v)))
		values = append(values, jen.Id("v").Dot(v.Go))
	}
	yes := jen.Id("v").Dot("Answer").Op("==").Id("AnswerYes").Op("||").
		Id("v").Dot("Answer").Op("==").Id("AnswerNeedsCapability")
	f.Func().Id(g.All.Func).Params(t.params(-1)...).Params(append(results, jen.Id("ok").Bool())...).Block(
		jen.Id("v").Op(":=").Id(g.Func).Call(t.arguments(len(g.Dims))...),
		jen.Return(append(values, yes)...),
	)
}

// unknown returns the answer for a value that a dimension lacks.
func (t *gridTable) unknown(d rules.Dim) jen.Code {
	release := "rdma-core " + t.g.Release
	reason, source := release+" has no such "+d.What, path.Base(t.pkg.Headers[0])+", "+release
	switch {
	case !strings.HasPrefix(d.Type, "enum "):
		reason, source = "no such "+d.What, "this table"
	case d.Flags:
		reason = "not exactly one " + d.What + " of " + release
	case d.Part:
		reason, source = "the table does not cover this "+d.What, "this table"
	}
	v := jen.Id("Validity").Values(jen.Dict{jen.Id("Reason"): jen.Lit(reason), jen.Id("Source"): jen.Lit(source)})
	if t.g.Result != "Validity" {
		return jen.Id(t.g.Result).Values(jen.Dict{jen.Id("Validity"): v})
	}
	return v
}

// lists prints the functions that return the items of one dimension for which the answer is yes.
func (t *gridTable) lists() {
	g, f := t.g, t.f
	for _, l := range g.Items {
		d := g.Dims[l.Dim]
		table := unexported(l.Func)
		comment(f, wrap(l.Func+" "+l.Doc+" The slice is shared and must not be modified. It does not allocate.")+
			"\n\n"+t.man())
		cell := jen.Id(table)
		size := &jen.Statement{}
		var body []jen.Code
		var known *jen.Statement
		var others []int
		for i, o := range g.Dims {
			if i == l.Dim {
				continue
			}
			at := "at" + rules.FieldName(o.Param)
			body = append(body, jen.Id(at).Op(":=").Id(t.positionName(i)).Call(jen.Id(o.Param)))
			cell.Index(jen.Id(at))
			size.Index(jen.Lit(len(o.Names)))
			others = append(others, i)
			if known == nil {
				known = jen.Id(at).Op("<").Lit(0)
			} else {
				known.Op("||").Id(at).Op("<").Lit(0)
			}
		}
		body = append(body, jen.If(known).Block(jen.Return(jen.Nil())), jen.Return(cell))
		f.Func().Id(l.Func).Params(t.params(l.Dim)...).Index().Id(t.goType(d.Type)).Block(body...)
		comment(f, table+" holds the slices that "+l.Func+" returns.")
		f.Var().Id(table).Op("=").Add(size).Index().Id(t.goType(d.Type)).Values(t.validItems(l.Dim, others,
			make([]string, len(g.Dims)))...)
	}
}

// validItems prints, for each combination of the other dimensions, the items for which the answer is yes.
func (t *gridTable) validItems(dim int, others []int, names []string) []jen.Code {
	d := t.g.Dims[dim]
	if len(others) == 0 {
		var valid []jen.Code
		for _, name := range d.Names {
			names[dim] = name
			if t.g.At(names...).Answer == rules.Yes {
				valid = append(valid, jen.Id(t.goConst(d.Type, name)))
			}
		}
		return valid
	}
	o := t.g.Dims[others[0]]
	var rows []jen.Code
	for _, name := range o.Names {
		names := slices.Clone(names)
		names[others[0]] = name
		rows = append(rows, jen.Line().Comment("// "+
			t.goConst(o.Type, name)).Line().Values(t.validItems(dim, others[1:], names)...))
	}
	return append(rows, jen.Line())
}

// wrap breaks a comment into lines.
func wrap(text string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		if width += len(word) + 1; i > 0 && width > 122 {
			b.WriteByte('\n')
			width = len(word) + 1
		} else if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word)
	}
	return b.String()
}

// unexported converts the first word of a Go name to lower case: WRPost → wrPost.
func unexported(name string) string {
	n := 1
	for n < len(name) && name[n] >= 'A' && name[n] <= 'Z' && (n+1 == len(name) || name[n+1] < 'a' || name[n+1] > 'z') {
		n++
	}
	return strings.ToLower(name[:n]) + name[n:]
}
