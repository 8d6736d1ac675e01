// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// enums plans the typed enumerations, and the constants of untagged ones.
func (r *resolver) enums() {
	for _, h := range r.headers {
		for _, e := range h.Enums {
			key := e.Tag
			if key == "" {
				key = e.Enumerators[0].Name
			}
			c := "enum " + e.Tag
			since := r.since.of(c)
			if e.Tag == "" {
				c = "untagged enum"
				since = r.since.of(key)
			}
			doc := r.doc(c, h, e.Man, since)
			var names []Const
			for _, n := range e.Enumerators {
				one := Const{
					Doc: r.doc(n.Name, h, e.Man,
						r.since.of(n.Name)), C: n.Name, Go: r.pkg.ConstName(n.Name), Enum: or(e.Tag, "-"),
					Value: n.Value,
				}
				r.claim(one.Go, n.Name)
				names = append(names, one)
			}
			if r.enumTypes[key] == nil {
				r.plan.Consts = append(r.plan.Consts, names...)
				continue
			}
			r.planEnum(r.enumTypes[key], Enum{Doc: doc, Tag: e.Tag, Signed: e.Signed, Flags: r.isFlags(key, e)}, names)
		}
	}
}

// isFlags reports whether the values of an enum can be combined. Headers write flags with shifts.
func (r *resolver) isFlags(key string, e model.Enum) bool {
	shifts := slices.ContainsFunc(e.Enumerators, func(n model.Enumerator) bool { return n.Shift })
	if !shifts || e.Signed {
		return false
	}
	return r.exceptions.find(NotFlags, key) == nil
}

// macros plans constants and aliases.
func (r *resolver) macros() {
	for _, h := range r.headers {
		for _, m := range h.Macros {
			if r.skipped("macro " + m.Name) {
				continue
			}
			doc := r.doc(m.Name, h, "", r.since.of(m.Name))
			switch m.Kind {
			case model.Constant:
				t, _ := model.ParseType(m.Type)
				one := Const{Doc: doc, C: m.Name, Go: r.pkg.ConstName(m.Name), Enum: "-", Value: *m.Value,
					Pointer: t.Pointers > 0}
				r.claim(one.Go, m.Name)
				if group := r.exceptions.group(m.Name); group != nil {
					r.group(group, one)
					continue
				}
				r.plan.Consts = append(r.plan.Consts, one)
			case model.Alias:
				r.alias(m, doc)
			case model.Text:
				r.fail(m.Name, "a macro that is neither a number nor another name; add a skip row for macro %s with "+
					"the reason to gen/rules/exceptions.txt", m.Name)
			default:
				r.fail(m.Name, "a function-like macro, which Go does not have; add a skip row with the reason to "+
					"gen/rules/exceptions.txt")
			}
		}
	}
}

// group adds a macro to a type that a row defines.
func (r *resolver) group(row *Exception, one Const) {
	i := slices.IndexFunc(r.plan.Enums, func(e Enum) bool { return e.Go == row.Argument })
	if i < 0 {
		prefix := strings.TrimPrefix(row.C, "macros ")
		r.claim(row.Argument, row.C)
		doc := one.Doc
		doc.C = "macros " + prefix + "*"
		i = len(r.plan.Enums)
		r.planEnum(r.ownEnum(prefix, row.Argument, 0), Enum{Doc: doc, Signed: row.Action == Errors,
			Flags: row.Action == Flags, Errors: row.Action == Errors}, nil)
	}
	r.plan.Enums[i].Names = append(r.plan.Enums[i].Names, one)
}

// alias plans a macro that aliases a tag or an enumerator.
func (r *resolver) alias(m model.Macro, doc Doc) {
	for _, kind := range []string{"struct ", "union ", "enum "} {
		if of, ok := r.goOf[kind+m.Target]; ok && of.Import == "" {
			a := Alias{Doc: doc, C: m.Name, Go: r.pkg.TypeName(m.Name), Of: of.Name}
			r.claim(a.Go, m.Name)
			r.plan.Aliases = append(r.plan.Aliases, a)
			return
		}
	}
	for _, h := range r.headers {
		for _, e := range h.Enums {
			for _, n := range e.Enumerators {
				if n.Name == m.Target {
					one := Const{Doc: doc, C: m.Name, Go: r.pkg.ConstName(m.Name), Enum: "-", Value: n.Value,
						AliasOf: r.pkg.ConstName(m.Target)}
					r.claim(one.Go, m.Name)
					r.plan.Consts = append(r.plan.Consts, one)
					return
				}
			}
		}
	}
	r.fail(m.Name, "expands to %s, which is neither a type nor a constant of this package; add a skip row with the "+
		"reason", m.Target)
}

// funcs plans the function table.
func (r *resolver) funcs() {
	for _, h := range r.headers {
		for i := range h.Funcs {
			f := &h.Funcs[i]
			if r.skipped(f.Name) {
				continue
			}
			r.plan.Funcs = append(r.plan.Funcs, Func{
				Doc: r.doc(f.Name, h, f.Man,
					r.since.of(f.Name)), Name: f.Name, Prototype: f.Proto.Declare(f.Name), Inline: f.Inline,
			})
		}
	}
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}
