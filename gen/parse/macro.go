// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// readMacros records the macros that are defined at the end of the public headers.
func (r *reader) readMacros() error {
	all := make([]*cc.Macro, 0, len(r.ast.Macros))
	for _, m := range r.ast.Macros {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *cc.Macro) int {
		return cmp.Or(cmp.Compare(a.Position().Filename, b.Position().Filename), a.Position().Line-b.Position().Line,
			cmp.Compare(a.Name.SrcStr(), b.Name.SrcStr()))
	})
	named := r.names()
	for _, m := range all {
		header, public, err := r.where(m.Position())
		if err != nil {
			return err
		}
		if !public || !m.IsFnLike && (len(m.ReplacementList()) == 0 || r.isGuard(header, m.Name.SrcStr())) {
			continue
		}
		rec := model.Macro{Name: m.Name.SrcStr()}
		switch list := m.ReplacementList(); {
		case m.IsFnLike:
			rec.Kind = model.FuncLike
			rec.Params = []string{}
			for _, p := range m.Params {
				rec.Params = append(rec.Params, p.SrcStr())
			}
		case len(list) == 1 && named[list[0].SrcStr()]:
			rec.Kind, rec.Target = model.Alias, list[0].SrcStr()
		default:
			n := r.constants[rec.Name]
			if n == nil {
				if err := r.checkLiterals(list); err != nil {
					return fmt.Errorf("%s: macro %s: %w", r.pos(m.Position()), rec.Name, err)
				}
				rec.Kind = model.Text
				break
			}
			v, err := r.constant(n)
			if errors.Is(err, errUnknown) { // generate rejects the macro unless a row excludes it
				rec.Kind = model.Text
				break
			}
			if err != nil {
				return fmt.Errorf("%s: macro %s: %w", r.pos(m.Position()), rec.Name, err)
			}
			t, err := r.spellConstant(n.Type(), v)
			if err != nil {
				return fmt.Errorf("%s: macro %s: %w", r.pos(m.Position()), rec.Name, err)
			}
			value := model.Int(v.n.String())
			rec.Kind, rec.Value, rec.Type = model.Constant, &value, t.String()
		}
		h := r.header(header, true)
		h.Macros = append(h.Macros, rec)
	}
	return nil
}

// isGuard reports whether a macro is the include guard of its header. An include guard may have a value.
func (r *reader) isGuard(header, macro string) bool {
	guard, known := r.guards[header]
	if !known {
		if text, err := fs.ReadFile(r.src.Include, header); err == nil {
			guard = guardOf(string(text))
		}
		r.guards[header] = guard
	}
	return macro == guard
}

// checkLiterals rejects integer literals that no C type can hold; the C parser has no value for them.
func (r *reader) checkLiterals(list []cc.Token) error {
	for _, t := range list {
		word := strings.TrimSpace(t.SrcStr())
		if word == "" || word[0] < '0' || word[0] > '9' {
			continue
		}
		if _, err := literalNumber(word, r.bitsOf(cc.Long)); errors.Is(err, errTooLong) {
			return err
		}
	}
	return nil
}

// spellConstant returns the type of a constant, which may be the type of a cast.
func (r *reader) spellConstant(t cc.Type, v number) (model.Type, error) {
	if p, ok := t.(*cc.PointerType); ok && p.Elem().Kind() == cc.Void {
		return model.Type{Base: "void", Pointers: 1}, nil
	}
	if d := t.Typedef(); t.Kind() != cc.Bool && (t.Size()*8 != int64(v.bits) || cc.IsSignedInteger(t) == v.unsigned ||
		d != nil && d.Position().Filename == builtinSource) {
		return v.spell(r.bitsOf(cc.Long)), nil
	}
	return r.spell("", t)
}

// spell returns the C type of v.
func (v number) spell(long uint) model.Type {
	base := "long long"
	switch v.bits {
	case 32:
		base = "int"
	case long:
		base = "long"
	}
	if v.unsigned {
		base = "unsigned " + base
	}
	return model.Type{Base: base}
}

// names returns the tags, enumerators and functions that a macro may expand to.
func (r *reader) names() map[string]bool {
	named := map[string]bool{}
	for name, at := range r.records {
		named[name[len(recordKind(at.spec))+1:]] = true
	}
	for _, at := range r.allEnums {
		named[at.spec.Token2.SrcStr()] = true
		for l := at.spec.EnumeratorList; l != nil; l = l.EnumeratorList {
			named[l.Enumerator.Token.SrcStr()] = true
		}
	}
	for _, h := range r.headers {
		for _, f := range h.Funcs {
			named[f.Name] = true
		}
	}
	return named
}
