package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// wordTargets are the 64-bit architectures that Go knows under Linux, supported by a release of Go or not.
var wordTargets = []string{"amd64", "arm64", "loong64", "mips64", "mips64le", "ppc64", "ppc64le", "riscv64", "s390x", "sparc64"}

// layouts prints assertions that fail to compile when a size or an offset is off: one file for what is alike on every
// target, one for each target that has layouts of its own; and for the 64-bit Linux targets that no model was recorded for,
// one error that says so.
func (e *emitter) layouts() {
	e.file("layout_linux.go", onTargets(e.plan.Targets), func(f *jen.File) {
		comment(f, "Each index is a difference that is zero when Go lays the type out as the C compiler does.")
		f.Var().Id("layout").Index(jen.Lit(1)).Struct()
		f.Line()
		for _, rec := range e.plan.Records {
			if rec.Kind != model.Incomplete && alike(rec) {
				e.assertions(f, rec, rec.Layouts[0])
			}
		}
	})
	for i, target := range e.plan.Targets {
		e.file("layout_linux_"+target+".go", onTargets([]string{target}), func(f *jen.File) {
			for _, rec := range e.plan.Records {
				if rec.Kind != model.Incomplete && !alike(rec) {
					e.assertions(f, rec, rec.Layouts[i])
				}
			}
		})
	}
	var without []string
	for _, t := range wordTargets {
		if !slices.Contains(e.plan.Targets, t) {
			without = append(without, t)
		}
	}
	if len(without) == 0 {
		return
	}
	e.file("layout_unsupported.go", onTargets(without), func(f *jen.File) {
		comment(f, "No layouts were recorded for this 64-bit Linux target, and an unproved layout would corrupt memory. Record its")
		comment(f, "predefined macros in headers/macros and run make record.")
		f.Var().Id("_").Op("=").Id("this_64_bit_Linux_target_has_no_recorded_layouts_see_CONTRIBUTING_md")
	})
}

// alike reports whether a record has one layout on every target.
func alike(rec rules.Record) bool {
	first := rec.Layouts[0]
	return !slices.ContainsFunc(rec.Layouts, func(v rules.Variant) bool {
		return v.Size != first.Size || v.Align != first.Align || !slices.EqualFunc(v.Members, first.Members, func(a, b rules.Member) bool {
			return a.Go == b.Go && a.Offset == b.Offset && a.Size == b.Size
		})
	})
}

func (e *emitter) assertions(f *jen.File, rec rules.Record, v rules.Variant) {
	zero := func() *jen.Statement { return jen.Id(rec.Go).Values() }
	check := func(what *jen.Statement, wanted int64, c string) jen.Code {
		return jen.Id("_").Op("=").Id("layout").Index(what.Op("-").Lit(int(wanted))).Comment("// " + c)
	}
	defs := []jen.Code{
		check(jen.Qual("unsafe", "Sizeof").Call(zero()), v.Size, "sizeof "+rec.Path),
		check(jen.Qual("unsafe", "Alignof").Call(zero()), v.Align, "alignof "+rec.Path),
	}
	for _, m := range v.Members {
		if m.Go != "_" {
			defs = append(defs, check(jen.Qual("unsafe", "Offsetof").Call(zero().Dot(m.Go)), m.Offset, fmt.Sprintf("%s.%s", rec.Path, strings.TrimPrefix(m.Go, "_"))))
		}
	}
	f.Var().Defs(defs...)
}
