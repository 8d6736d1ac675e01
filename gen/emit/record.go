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

// records prints the types of the given kinds, and accessors for members that are not fields. Types that differ by
// target are printed by variants.
func (e *emitter) records(f *jen.File, kinds ...model.RecordKind) {
	for _, rec := range e.plan.Records {
		if !slices.Contains(kinds, rec.Kind) {
			continue
		}
		if len(rec.Variants) == 1 {
			e.record(f, rec, rec.Variants[0])
		}
		for _, a := range rec.Access {
			e.accessor(f, rec, a)
		}
	}
}

// variants prints the types that differ by target into files with build constraints.
func (e *emitter) variants() {
	byTargets := map[string][]string{} // targets of a variant → types with that variant
	for _, rec := range e.plan.Records {
		for _, v := range rec.Variants[min(1, len(rec.Variants)-1):] {
			if len(rec.Variants) > 1 {
				key := strings.Join(v.Targets, "_")
				byTargets[key] = append(byTargets[key], rec.Go)
			}
		}
	}
	for key := range byTargets {
		e.file("variant_"+key+".go", e.onTargets(strings.Split(key, "_")), func(f *jen.File) {
			for _, rec := range e.plan.Records {
				for _, v := range rec.Variants[1:] {
					if strings.Join(v.Targets, "_") == key {
						e.record(f, rec, v)
					}
				}
			}
		})
		e.file("variant_"+key+"_default.go", "!("+e.onTargets(strings.Split(key, "_"))+")", func(f *jen.File) {
			for _, rec := range e.plan.Records {
				if len(rec.Variants) > 1 && strings.Join(rec.Variants[1].Targets, "_") == key {
					if len(rec.Variants) > 2 {
						e.err = fmt.Errorf("%s has %d layouts; at most two are supported", rec.Path,
							len(rec.Variants))
						return
					}
					e.record(f, rec, rec.Variants[0])
				}
			}
		})
	}
}

// onTargets returns the build constraint for targets.
func (e *emitter) onTargets(targets []string) string {
	goos := e.plan.Package.GOOS()
	if len(targets) == 1 {
		return goos + " && " + targets[0]
	}
	return goos + " && (" + strings.Join(targets, " || ") + ")"
}

func (e *emitter) record(f *jen.File, rec rules.Record, v rules.Variant) {
	switch rec.Kind {
	case model.Incomplete:
		comment(f, docLines(rec.Go, "is an incomplete C type, used only through pointers"+purpose(rec.Uses), rec.Doc))
		f.Type().Id(rec.Go).Struct(jen.Id("_").Qual("structs", "HostLayout"),
			jen.Id("_").Index(jen.Lit(0)).Func().Params())
		return
	case model.Opaque:
		comment(f, docLines(rec.Go,
			fmt.Sprintf("is a type of the C library; its %s bytes are opaque", rec.Bytes())+
				purpose(rec.Uses), rec.Doc))
	case model.Union:
		comment(f, docLines(rec.Go,
			fmt.Sprintf("is a union of %s bytes; each member is a method that returns its address",
				rec.Bytes())+purpose(rec.Uses), rec.Doc))
	default:
		comment(f, docLines(rec.Go, fmt.Sprintf("has %s bytes", rec.Bytes())+purpose(rec.Uses), rec.Doc))
	}
	f.Type().Id(rec.Go).StructFunc(func(g *jen.Group) {
		g.Id("_").Qual("structs", "HostLayout")
		for _, m := range v.Members {
			field := g.Id(m.Go).Add(e.goType(m.Type))
			if note := notes(m.C, m.Notes); note != "" {
				field.Comment("// " + note)
			}
		}
	})
}

// notes returns the comment of a member. It starts with the C name, so that text searches find it.
func notes(c string, more []string) string {
	if c != "" {
		more = append([]string{"C: " + c}, more...)
	}
	return strings.Join(more, "; ")
}

// accessor prints the methods of a C member that is not a Go field.
func (e *emitter) accessor(f *jen.File, rec rules.Record, a rules.Access) {
	note := ".\n\n" + notes(a.C, a.Notes)
	self := jen.Id("p").Op("*").Id(rec.Go)
	start := func() *jen.Statement {
		return jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Id("p").Dot(a.Storage))
	}
	switch a.Kind {
	case rules.Arm:
		comment(f, fmt.Sprintf("%s returns the address of a member that shares its bytes with others%s", a.Go, note))
		f.Func().Params(self).Id(a.Go).Params().Op("*").Add(e.goType(a.Type)).Block(
			jen.Return(jen.Id("arm").Types(e.goType(a.Type)).Call(start(), jen.Lit(int(a.Delta)))))
	case rules.Trailing:
		comment(f, fmt.Sprintf("%s returns the array of n elements that follows the record; the caller has allocated "+
			"them with it%s", a.Go, note))
		f.Func().Params(self).Id(a.Go).Params(jen.Id("n").Int()).Index().Add(e.goType(a.Type)).Block(
			jen.Return(jen.Id("trailing").Types(e.goType(a.Type)).Call(jen.Qual("unsafe", "Pointer").Call(jen.Id("p")),
				jen.Lit(int(a.Delta)), jen.Id("n"))))
	case rules.Unaligned:
		bytes := func() *jen.Statement { return jen.Id("p").Dot(a.Storage).Index(jen.Op(":")) }
		comment(f, fmt.Sprintf("%s returns a copy of a member that is not aligned for a Go field of its type%s",
			a.Go, note))
		f.Func().Params(self.Clone()).Id(a.Go).Params().Add(e.goType(a.Type)).Block(
			jen.Return(jen.Id("loadUnaligned").Types(e.goType(a.Type)).Call(bytes())))
		comment(f, fmt.Sprintf("Set%s sets the member.", a.Go))
		f.Func().Params(self.Clone()).Id("Set" + a.Go).Params(jen.Id("v").Add(e.goType(a.Type))).Block(
			jen.Id("storeUnaligned").Call(bytes(), jen.Id("v")))
	case rules.Bits:
		e.bitfield(f, self, a, start, note)
	}
}

// bitfield prints the methods of a bitfield.
func (e *emitter) bitfield(f *jen.File, self *jen.Statement, a rules.Access, start func() *jen.Statement, note string) {
	load := func(t jen.Code) *jen.Statement {
		return jen.Id("loadBits").Types(t).Call(start(), jen.Lit(int(a.Delta)), jen.Lit(int(a.Size)))
	}
	store := func(v jen.Code) *jen.Statement {
		return jen.Id("storeBits").Call(start(), jen.Lit(int(a.Delta)), jen.Lit(int(a.Size)), v)
	}
	get, set := []jen.Code{jen.Return(load(e.goType(a.Type)))}, []jen.Code{store(jen.Id("v"))}
	if a.Type.Name == "bool" {
		get = []jen.Code{jen.Return(load(jen.Uint8()).Op("!=").Lit(0))}
		set = []jen.Code{jen.Id("n").Op(":=").Uint8().Call(jen.Lit(0)),
			jen.If(jen.Id("v")).Block(jen.Id("n").Op("=").Lit(1)), store(jen.Id("n"))}
	}
	comment(f, fmt.Sprintf("%s returns a bitfield of %d bits%s", a.Go, a.Size, note))
	f.Func().Params(self.Clone()).Id(a.Go).Params().Add(e.goType(a.Type)).Block(get...)
	comment(f, fmt.Sprintf("Set%s sets the bitfield; excess bits of v are dropped.", a.Go))
	f.Func().Params(self.Clone()).Id("Set" + a.Go).Params(jen.Id("v").Add(e.goType(a.Type))).Block(set...)
}

// aliases prints the aliases of types that macros define.
func (e *emitter) aliases(f *jen.File) {
	for _, a := range e.plan.Aliases {
		comment(f, docLines(a.Go, "is another name for "+a.Of, a.Doc))
		f.Type().Id(a.Go).Op("=").Id(a.Of)
	}
}
