// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"strings"

	"github.com/dave/jennifer/jen"
)

// funcs prints the function table.
func (e *emitter) funcs(f *jen.File) {
	if len(e.plan.Funcs) == 0 {
		return
	}
	if e.plan.Shared == "" {
		functionTypes(f)
	}
	comment(f, "Functions lists the functions of the headers in order. It must not be modified.")
	rows := make([]jen.Code, 0, len(e.plan.Funcs)+1)
	for _, fn := range e.plan.Funcs {
		row := jen.Dict{
			jen.Id("Name"): jen.Lit(fn.Name), jen.Id("Prototype"): jen.Lit(fn.Prototype),
			jen.Id("Header"): jen.Lit(fn.Doc.Header),
			jen.Id("Since"):  jen.Lit(fn.Doc.Since),
		}
		if fn.Doc.Man != "" {
			row[jen.Id("Man")] = jen.Lit(fn.Doc.Man)
		}
		if in := fn.Inline; in != nil {
			d := jen.Dict{jen.Id("Kind"): jen.Lit(string(in.Kind))}
			slot := in.Slot
			if in.Struct != "" {
				slot = in.Struct + "." + in.Slot
			}
			for name, text := range map[string]string{"Object": in.Object, "Slot": slot, "Guard": in.Guard,
				"Absent": in.Absent, "Errors": string(in.Errors)} {
				if text != "" {
					d[jen.Id(name)] = jen.Lit(text)
				}
			}
			for name, list := range map[string][]string{"Calls": in.Calls, "Args": in.Args} {
				if len(list) > 0 {
					d[jen.Id(name)] = jen.Index().String().ValuesFunc(func(g *jen.Group) {
						for _, s := range list {
							g.Lit(strings.TrimSpace(s))
						}
					})
				}
			}
			row[jen.Id("Inline")] = jen.Op("&").Add(qualified(e.plan.Shared, "Inline")).Values(d)
		}
		rows = append(rows, jen.Line().Values(row))
	}
	rows = append(rows, jen.Line())
	f.Var().Id("Functions").Op("=").Index().Add(qualified(e.plan.Shared, "Function")).Values(rows...)
}

// functionTypes prints the types of the rows.
func functionTypes(f *jen.File) {
	comment(f, "Function describes a C function of the headers.")
	f.Type().Id("Function").Struct(
		jen.Id("Name").String().Comment("// C name"),
		jen.Id("Prototype").String().Comment("// C declaration"),
		jen.Id("Header").String(),
		jen.Id("Man").String().Comment(`// "ibv_post_send(3)", or ""`),
		jen.Id("Since").String().Comment("// release of the project"),
		jen.Id("Inline").Op("*").Id("Inline").Comment("// nil for a function that the library exports"),
	)
	comment(f, "Inline describes the body of an inline function.")
	f.Type().Id("Inline").Struct(
		jen.Id("Kind").String().Comment("// slot, context op, extended op, call, compute, or logic"),
		jen.Id("Object").String().Comment("// path from a parameter to the structure that holds the slot"),
		jen.Id("Slot").String().Comment(`// called structure member: "ibv_context_ops.post_send"`),
		jen.Id("Guard").String().Comment("// size member to check before the slot is read"),
		jen.Id("Absent").String().Comment("// errno when the slot is missing"),
		jen.Id("Errors").String().Comment("// how that errno is reported"),
		jen.Id("Calls").Index().String().Comment("// functions called"),
		jen.Id("Args").Index().String().Comment("// arguments of the slot or call, in C"),
	)
}

// funcTypes prints the types of function addresses.
func (e *emitter) funcTypes(f *jen.File) {
	for _, t := range e.plan.FuncTypes {
		comment(f, docLines(t.Go, "is the address of a C function of the type "+t.C+"; 0 is NULL", t.Doc))
		f.Type().Id(t.Go).Add(qualified(e.plan.Shared, "FuncPtr"))
	}
}
