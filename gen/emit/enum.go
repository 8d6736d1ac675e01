// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"
	"slices"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/rules"
)

// enums prints the typed enumerations and the tables of their names.
func (e *emitter) enums(f *jen.File) {
	for _, en := range e.plan.Enums {
		what := "is an enumeration; values without a name print as numbers"
		if en.Errors {
			what = "is an error of the library; values without a name print as numbers"
		}
		if en.Flags {
			what = "is a set of flags; bits without a name print in hex"
		}
		if en.Of != "" {
			what = fmt.Sprintf("is %s in %d bits", en.Of, 8*en.Size)
		}
		comment(f, docLines(en.Go, what+purpose(en.Uses), en.Doc))
		f.Type().Id(en.Go).Id(underlying(en))
		var defs []jen.Code
		for _, n := range en.Names {
			def := jen.Id(n.Go)
			if !en.Untyped {
				def.Id(en.Go)
			}
			def.Op("=").Add(number(n.Value))
			note := "C: " + n.C
			if n.Doc.Since != en.Doc.Since {
				note += ", since " + n.Doc.Since
			}
			def.Comment("// " + note)
			defs = append(defs, def)
		}
		if en.Untyped {
			comment(f, fmt.Sprintf("Values of %s. They are untyped because members of several sizes hold them.", en.Go))
		} else if len(defs) > 0 {
			comment(f, fmt.Sprintf("Values of %s.", en.Go))
		}
		if len(defs) > 0 {
			f.Const().Defs(defs...)
		}
		var all []namedValue
		// String prints the first name of a value; parsing accepts all
		for _, n := range slices.Concat(en.Shown, en.Names) {
			all = append(all, namedValue{n.Go, n.C})
		}
		for _, c := range e.plan.Consts { // macros
			if slices.ContainsFunc(en.Names, func(n rules.Const) bool { return n.Go == c.AliasOf }) {
				all = append(all, namedValue{c.Go, c.C})
			}
		}
		tag := en.Tag
		if tag == "" {
			tag = en.Go
		}
		texts(f, en.Go, tag, en.Flags, all)
		if en.Errors {
			comment(f, "Error returns the C name, like String.")
			f.Func().Params(jen.Id("v").Id(en.Go)).Id("Error").Params().String().Block(
				jen.Return(jen.Id("v").Dot("String").Call()))
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

// namedValue is a constant and its C name.
type namedValue struct{ constant, name string }

// texts prints the methods that format and parse an enumeration or a set of flags as text and JSON.
func texts(f *jen.File, typ, tag string, flags bool, all []namedValue) {
	var rows []jen.Code
	for _, v := range all {
		rows = append(rows, jen.Line().Values(jen.Id(v.constant), jen.Lit(v.name)))
	}
	names := "namesOf" + typ
	f.Var().Id(names).Op("=").Index(jen.Op("...")).Id("named").Types(jen.Id(typ)).Values(append(rows, jen.Line())...)

	v, bytes := jen.Id("v"), jen.Index().Byte()
	list := jen.Id(names).Index(jen.Op(":"))
	method := func(doc, name string, self, params, results, result jen.Code) {
		comment(f, doc)
		f.Func().Params(self).Id(name).Params(params).Add(results).Block(jen.Return(result))
	}
	value, pointer := jen.Id("v").Id(typ), jen.Id("v").Op("*").Id(typ)
	marshals := jen.Params(bytes, jen.Error())
	text, parse, docs := "enumText", "parseEnum", []string{
		"String returns the name, or the enumeration's name with the number.",
		"MarshalText returns the name, or the number.",
		"UnmarshalText parses a number or a name, with or without the prefix of the C library.",
		"MarshalJSON returns the name as a string, or the number.",
		"UnmarshalJSON parses a name or a number.",
	}
	print := jen.Id("enumString").Call(v, jen.Lit(tag), list)
	toText, toJSON := jen.Id(text).Call(v, list), jen.Id("enumJSON").Call(v, list)
	if flags {
		parse, docs = "parseFlags", []string{
			"String joins the names of the bits with |; the rest is printed in hex.",
			"MarshalText returns the same text as String.",
			"UnmarshalText parses numbers and names, with or without the prefix of the C library, joined by |.",
			"MarshalJSON returns the text of String as a JSON string.",
			"UnmarshalJSON parses such a string, or a number.",
		}
		print = jen.Id("flagString").Call(v, list)
		toText = bytes.Clone().Parens(jen.Id("v").Dot("String").Call())
		toJSON = jen.Id("quoted").Call(jen.Id("v").Dot("String").Call())
	}
	method(docs[0], "String", value, nil, jen.String(), print)
	method(docs[1], "MarshalText", value, nil, marshals, jen.List(toText, jen.Nil()))
	method(docs[2], "UnmarshalText", pointer, jen.Id("text").Add(bytes), jen.Error(),
		jen.Id(parse).Call(v, jen.Lit(tag), jen.Id("text"), list))
	method(docs[3], "MarshalJSON", value, nil, marshals, jen.List(toJSON, jen.Nil()))
	method(docs[4], "UnmarshalJSON", pointer, jen.Id("json").Add(bytes), jen.Error(),
		jen.Id("fromJSON").Call(jen.Id("json"), jen.Id("v").Dot("UnmarshalText")))
}
