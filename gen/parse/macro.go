package parse

import (
	"cmp"
	"fmt"
	"slices"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// readMacros records the macros that the public headers leave defined.
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
		if !public || (!m.IsFnLike && len(m.ReplacementList()) == 0) { // include guards
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
			if err := r.checkConstant(list, m.Value()); err != nil {
				return fmt.Errorf("%s: macro %s: %w", r.pos(m.Position()), rec.Name, err)
			}
			value, ok := intValue(m.Value())
			if !ok {
				rec.Kind = model.Text
				break
			}
			t, err := r.spellConstant(m.Type())
			if err != nil {
				return fmt.Errorf("%s: macro %s: %w", r.pos(m.Position()), rec.Name, err)
			}
			rec.Kind, rec.Value, rec.Type = model.Constant, &value, t.String()
		}
		h := r.header(header, true)
		h.Macros = append(h.Macros, rec)
	}
	return nil
}

// spellConstant spells the type of a constant, which may come from a cast.
func (r *reader) spellConstant(t cc.Type) (model.Type, error) {
	if p, ok := t.(*cc.PointerType); ok && p.Elem().Kind() == cc.Void {
		return model.Type{Base: "void", Pointers: 1}, nil
	}
	return r.spell("", t)
}

// names are the tags, enumerators and functions that a macro may stand for.
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
