// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/rules"
)

// consts prints constants without a C type: macros, and the enumerators of untagged enums.
func (e *emitter) consts(f *jen.File) {
	for start := 0; start < len(e.plan.Consts); {
		end := start + 1
		for end < len(e.plan.Consts) && sameOrigin(e.plan.Consts[start], e.plan.Consts[end]) {
			end++
		}
		group := e.plan.Consts[start:end]
		start = end
		comment(f, "C: macros and enumerators of untagged enums ("+group[0].Doc.Header+")")
		comment(f, "Man: "+orNone(group[0].Doc.Man))
		var defs []jen.Code
		for _, c := range group {
			defs = append(defs, constant(c))
		}
		f.Const().Defs(defs...)
		f.Line()
	}
}

func sameOrigin(a, b rules.Const) bool {
	return a.Doc.Header == b.Doc.Header && a.Doc.Man == b.Doc.Man
}

func constant(c rules.Const) *jen.Statement {
	def := jen.Id(c.Go).Op("=")
	switch {
	case c.AliasOf != "":
		def.Id(c.AliasOf)
	case c.Pointer && c.Value.Uint64() == ^uint64(0):
		def.Op("^").Uintptr().Parens(jen.Lit(0)) // all bits set, on every word size
	case c.Pointer:
		def.Uintptr().Parens(number(c.Value))
	default:
		def.Add(number(c.Value))
	}
	return def.Comment("// C: " + c.C + ", since " + c.Doc.Since)
}
