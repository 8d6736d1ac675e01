// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Witness prints the package that lists the contents of the generated packages under their C names. Tests and tools
// thus read the Go types themselves, through reflection and the accessors of union members, and not the model from
// which the types were generated.
func Witness(plans []*rules.Plan) (Files, error) {
	out := Files{}
	f := witnessFile(plans[0].Source())
	f.PackageComment("// Package witness lists the types and constants of the generated packages under their C " +
		"names. It is for tests and")
	f.PackageComment("// tools such as verbsabi; programs do not need it.")
	comment(f, "Package describes one generated package.")
	f.Type().Id("Package").Struct(
		jen.Id("Name").String().Comment(`// "ibv"`), jen.Id("Release").String().Comment("// of its project"),
		jen.Id("Records").Index().Id("Record"), jen.Id("Constants").Index().Id("Constant"))
	comment(f, "Record is a structure, a union or an opaque type.")
	f.Type().Id("Record").Struct(
		jen.Id("C").String().Comment(`// tag or typedef: "ibv_send_wr"`),
		jen.Id("Kind").String().Comment("// struct, union, opaque"),
		jen.Id("Go").String().Comment(`// "ibv.SendWR"`), jen.Id("Align").Uintptr(),
		jen.Id("New").Func().Params().Any().Comment("// a pointer to a new one"),
		jen.Id("Paths").Index().String().Comment(`// of the members that C can name: "wr.rdma.rkey"`),
		jen.Id("Members").Func().Params(jen.Id("record").Any()).Index().Any().
			Comment("// pointers to them inside the record"))
	comment(f, "Constant is an enumerator or a macro.")
	f.Type().Id("Constant").Struct(
		jen.Id("Enum").String().Comment(`// tag, or "-"`), jen.Id("Name").String(),
		jen.Id("Value").Any().Comment("// an integer"))
	var names []jen.Code
	for _, p := range plans {
		if p.Package.Verbs != nil {
			names = append(names, jen.Id(strings.ToUpper(p.Package.Name)))
		}
	}
	comment(f, "All lists the packages of the libraries. UAPI is the package of the kernel.")
	f.Func().Id("All").Params().Index().Id("Package").Block(jen.Return(jen.Index().Id("Package").Values(names...)))
	if err := out.add("witness.go", f); err != nil {
		return nil, err
	}
	for _, p := range plans {
		if err := out.add(p.Package.Name+".go", witnessOf(p)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func witnessFile(source string) *jen.File {
	f := jen.NewFile("witness")
	f.HeaderComment(fmt.Sprintf(generated, source))
	return f
}

func witnessOf(p *rules.Plan) *jen.File {
	pkg := p.Import
	f := witnessFile(p.Source())
	f.ImportName(pkg, p.Package.Name)
	var records []jen.Code
	for _, rec := range p.Records {
		if strings.Contains(rec.Path, ".") || rec.Kind == model.Incomplete {
			continue // types defined in place are compared as part of the enclosing record
		}
		var paths, members []jen.Code
		for _, path := range rec.Paths {
			paths = append(paths, jen.Line().Lit(path.C))
			members = append(members, jen.Line().Op(path.Expr)) // expressions that refer to p
		}
		d := jen.Dict{
			jen.Id("C"): jen.Lit(rec.Path), jen.Id("Kind"): jen.Lit(string(rec.Kind)),
			jen.Id("Go"):    jen.Lit(p.Package.Name + "." + rec.Go),
			jen.Id("Align"): jen.Qual("unsafe", "Alignof").Call(jen.Qual(pkg, rec.Go).Values()),
			jen.Id("New"):   jen.Func().Params().Any().Block(jen.Return(jen.New(jen.Qual(pkg, rec.Go)))),
		}
		if len(paths) > 0 {
			d[jen.Id("Paths")] = jen.Index().String().Values(append(paths, jen.Line())...)
			d[jen.Id("Members")] = jen.Func().Params(jen.Id("record").Any()).Index().Any().Block(
				jen.Id("p").Op(":=").Id("record").Assert(jen.Op("*").Qual(pkg, rec.Go)),
				jen.Return(jen.Index().Any().Values(append(members, jen.Line())...)))
		}
		records = append(records, jen.Line().Values(d))
	}
	var constants []jen.Code
	constant := func(c rules.Const) {
		value := jen.Qual(pkg, c.Go)
		if c.AliasOf == "" && c.Enum == "-" && !c.Pointer {
			kind := jen.Int64()
			if !c.Value.Negative() && c.Value.Uint64() > 1<<63-1 {
				kind = jen.Uint64()
			}
			value = kind.Parens(value)
		}
		constants = append(constants, jen.Line().Values(jen.Lit(c.Enum), jen.Lit(c.C), value))
	}
	for _, en := range p.Enums {
		if en.Given { // C has no such constants
			continue
		}
		for _, n := range en.Names {
			value := jen.Qual(pkg, n.Go)
			if en.Untyped {
				value = jen.Qual(pkg, en.Go).Parens(value)
			}
			constants = append(constants, jen.Line().Values(jen.Lit(n.Enum), jen.Lit(n.C), value))
		}
	}
	for _, c := range p.Consts {
		constant(c)
	}
	comment(f, fmt.Sprintf("%s is package %s.", strings.ToUpper(p.Package.Name), p.Package.Name))
	f.Var().Id(strings.ToUpper(p.Package.Name)).Op("=").Id("Package").Values(jen.Dict{
		jen.Id("Name"): jen.Lit(p.Package.Name), jen.Id("Release"): jen.Lit(p.Release),
		jen.Id("Records"):   jen.Index().Id("Record").Values(append(records, jen.Line())...),
		jen.Id("Constants"): jen.Index().Id("Constant").Values(append(constants, jen.Line())...),
	})
	return f
}
