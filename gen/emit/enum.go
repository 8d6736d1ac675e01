// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// enums prints the typed enumerations, each with its names and a String that prints C's.
func (e *emitter) enums(f *jen.File) {
	for _, en := range e.plan.Enums {
		what := "is an enumeration; values that it does not name print as numbers"
		if en.Flags {
			what = "is a set of flags; bits that it does not name print in hex"
		}
		comment(f, docLines(en.Go, what, en.Doc))
		f.Type().Id(en.Go).Id(underlying(en))
		comment(f, fmt.Sprintf("Values of %s.", en.Go))
		var defs []jen.Code
		for _, n := range en.Names {
			def := jen.Id(n.Go).Id(en.Go).Op("=").Add(number(n.Value))
			note := "C: " + n.C
			if n.Doc.Since != en.Doc.Since {
				note += ", since " + n.Doc.Since
			}
			def.Comment("// " + note)
			defs = append(defs, def)
		}
		f.Const().Defs(defs...)
		if en.Flags {
			e.flagString(f, en)
		} else {
			e.enumString(f, en)
		}
	}
}

func underlying(en rules.Enum) string {
	name := fmt.Sprintf("int%d", en.Size*8)
	if !en.Signed {
		name = "u" + name
	}
	return name
}

func (e *emitter) enumString(f *jen.File, en rules.Enum) {
	seen := map[model.Int]bool{}
	var cases []jen.Code
	for _, n := range en.Names {
		if !seen[n.Value] { // a repeated value prints its first name
			cases = append(cases, jen.Case(jen.Id(n.Go)).Block(jen.Return(jen.Lit(n.C))))
		}
		seen[n.Value] = true
	}
	name := en.Tag
	if name == "" {
		name = en.Go
	}
	comment(f, "String is the C name, or the enum's with the number.")
	f.Func().Params(jen.Id("v").Id(en.Go)).Id("String").Params().String().Block(
		jen.Switch(jen.Id("v")).Block(cases...),
		jen.Return(jen.Id("formatUnknown").Call(jen.Lit(name), jen.Int64().Parens(jen.Id("v")))),
	)
}

func (e *emitter) flagString(f *jen.File, en rules.Enum) {
	table := "namesOf" + en.Go
	var rows []jen.Code
	seen := map[model.Int]bool{"0": true}
	for _, n := range en.Names {
		if !seen[n.Value] {
			rows = append(rows, jen.Line().Values(jen.Uint64().Parens(jen.Id(n.Go)), jen.Lit(n.C)))
		}
		seen[n.Value] = true
	}
	rows = append(rows, jen.Line())
	f.Var().Id(table).Op("=").Index(jen.Op("...")).Id("bitName").Values(rows...)
	comment(f, "String joins the C names of the bits with |.")
	f.Func().Params(jen.Id("v").Id(en.Go)).Id("String").Params().String().Block(
		jen.Return(jen.Id("formatFlags").Call(jen.Uint64().Parens(jen.Id("v")), jen.Id(table).Index(jen.Op(":")))),
	)
}
