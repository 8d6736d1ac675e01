// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// wordTargets lists the 64-bit architectures that Go supports on Linux, including those for which no model is recorded.
var wordTargets = []string{"amd64", "arm64", "loong64", "mips64", "mips64le", "ppc64", "ppc64le", "riscv64", "s390x",
	"sparc64"}

// layouts prints assertions that fail to compile if a size or an offset is wrong: one file for the layouts that are the
// same on all targets, and one for each group of targets with the same other layouts. For 64-bit Linux targets without
// a recorded model, it prints a file that fails to compile with an explanation.
func (e *emitter) layouts() {
	goos := e.plan.Package.GOOS()
	e.file("layout_"+goos+".go", e.onTargets(e.plan.Targets), func(f *jen.File) {
		comment(f, "Each index is a difference that is zero when Go lays the type out as the C compiler does.")
		f.Var().Id("layout").Index(jen.Lit(1)).Struct()
		f.Line()
		e.assertAll(f, 0, onAllTargets)
	})
	for _, group := range e.layoutGroups() {
		name := "default"
		if group[0] != 0 {
			name = e.plan.Targets[group[0]]
		}
		var targets []string
		for _, i := range group {
			targets = append(targets, e.plan.Targets[i])
		}
		e.file("layout_"+goos+"_"+name+".go", e.onTargets(targets), func(f *jen.File) {
			e.assertAll(f, group[0], func(rec rules.Record) bool { return !onAllTargets(rec) })
		})
	}
	var without []string
	for _, t := range wordTargets {
		if !slices.Contains(e.plan.Targets, t) {
			without = append(without, t)
		}
	}
	if len(without) == 0 || goos != "linux" { // only packages for Linux have functions that use the layouts
		return
	}
	e.file("layout_unsupported.go", e.onTargets(without), func(f *jen.File) {
		comment(f, "No layouts were recorded for this 64-bit Linux target, and an unverified layout would corrupt "+
			"memory. Record its")
		comment(f, "predefined macros in headers/macros and run make record.")
		f.Var().Id("_").Op("=").Id("this_64_bit_Linux_target_has_no_recorded_layouts_see_CONTRIBUTING_md")
	})
}

// layoutGroups partitions the target indexes into groups with identical layouts.
func (e *emitter) layoutGroups() [][]int {
	var groups [][]int
	for i := range e.plan.Targets {
		same := slices.IndexFunc(groups, func(g []int) bool {
			return !slices.ContainsFunc(e.plan.Records, func(rec rules.Record) bool {
				return rec.Kind != model.Incomplete && !sameLayout(rec.Layouts[g[0]], rec.Layouts[i])
			})
		})
		if same < 0 {
			groups = append(groups, []int{i})
		} else {
			groups[same] = append(groups[same], i)
		}
	}
	return groups
}

// assertAll prints the assertions of selected records for one target.
func (e *emitter) assertAll(f *jen.File, target int, some func(rules.Record) bool) {
	for _, rec := range e.plan.Records {
		if rec.Kind != model.Incomplete && some(rec) {
			e.assertions(f, rec, rec.Layouts[target])
		}
	}
}

// onAllTargets reports whether a record has the same layout on every target.
func onAllTargets(rec rules.Record) bool {
	return !slices.ContainsFunc(rec.Layouts, func(v rules.Variant) bool { return !sameLayout(rec.Layouts[0], v) })
}

func sameLayout(a, b rules.Variant) bool {
	return a.Size == b.Size && a.Align == b.Align &&
		slices.EqualFunc(a.Members, b.Members, func(x, y rules.Member) bool {
			return x.Go == y.Go && x.Offset == y.Offset && x.Size == y.Size
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
			defs = append(defs, check(jen.Qual("unsafe", "Offsetof").Call(zero().Dot(m.Go)), m.Offset,
				fmt.Sprintf("%s.%s", rec.Path, strings.TrimPrefix(m.Go, "_"))))
		}
	}
	f.Var().Defs(defs...)
}
