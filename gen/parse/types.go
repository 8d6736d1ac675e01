// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// predefined maps C's keyword types to their spellings.
var predefined = map[cc.Kind]string{
	cc.Void: "void", cc.Bool: "_Bool", cc.Char: "char", cc.SChar: "signed char", cc.UChar: "unsigned char",
	cc.Short: "short", cc.UShort: "unsigned short", cc.Int: "int", cc.UInt: "unsigned int", cc.Long: "long",
	cc.ULong: "unsigned long", cc.LongLong: "long long", cc.ULongLong: "unsigned long long",
}

// spell returns the spelling of a type in the model, for a declaration of the header.
func (r *reader) spell(header string, t cc.Type) (model.Type, error) {
	var m model.Type
	for {
		if decl := t.Typedef(); decl != nil && t.Kind() != cc.Ptr && t.Kind() != cc.Array && tagOf(t) == "" {
			return m, r.spellTypedef(header, &m, t, decl)
		}
		switch u := t.(type) {
		case *cc.ArrayType:
			if m.Pointers > 0 {
				return m, fmt.Errorf("a pointer to an array (%s) is not supported", t)
			}
			n := u.Len()
			if u.IsIncomplete() {
				n = model.Flexible
			}
			m.Dims = append(m.Dims, n)
			t = u.Elem()
			continue
		case *cc.PointerType:
			m.Pointers++
			t = u.Elem()
			continue
		case *cc.StructType, *cc.UnionType:
			kind, tag := "struct", tagOf(t)
			if t.Kind() == cc.Union {
				kind = "union"
			}
			if tag == "" {
				return m, fmt.Errorf("an untagged %s (%s) where a named type is required", kind, t)
			}
			m.Base = kind + " " + tag
			r.markUsed(m.Base, header)
		case *cc.EnumType:
			tag := u.Tag()
			if tag.SrcStr() == "" {
				return m, fmt.Errorf("an untagged enum where a named type is required")
			}
			m.Base = "enum " + tag.SrcStr()
			r.markUsed(m.Base, header)
		case *cc.PredefinedType:
			name, ok := predefined[u.Kind()]
			if !ok {
				return m, fmt.Errorf("type %s is not supported", t)
			}
			m.Base = name
		default:
			return m, fmt.Errorf("type %s (%T) is not supported", t, t)
		}
		m.Const = isConst(t)
		return m, nil
	}
}

// tagOf returns the tag of a structure or union, which is preferred to a typedef.
func tagOf(t cc.Type) string {
	var tag cc.Token
	switch t := t.(type) {
	case *cc.StructType:
		tag = t.Tag()
	case *cc.UnionType:
		tag = t.Tag()
	}
	return tag.SrcStr()
}

// spellTypedef keeps the name of the typedef, since uint32_t and __be32 are more specific than unsigned int.
func (r *reader) spellTypedef(header string, m *model.Type, t cc.Type, decl *cc.Declarator) error {
	m.Base = decl.Name()
	m.Const = isConst(t)
	if _, isEnum := t.(*cc.EnumType); isEnum || cc.IsIntegerType(t) || t.Kind() == cc.Void ||
		t.Kind() == cc.Function && m.Pointers > 0 {
		return nil
	}
	_, public, err := r.where(decl.Position())
	if err != nil {
		return err
	}
	if public {
		return fmt.Errorf("typedef %s of a public header is not an integer, which is not supported", decl.Name())
	}
	r.opaques[decl.Name()] = decl
	r.markUsed(decl.Name(), header)
	return nil
}

func isConst(t cc.Type) bool {
	a := t.Attributes()
	return a != nil && a.IsConst()
}

// constList reads const from the specifiers, since cc drops the const of a structure that is defined later.
func constList(l *cc.SpecifierQualifierList) bool {
	for ; l != nil; l = l.SpecifierQualifierList {
		if l.TypeQualifier != nil && l.TypeQualifier.Case == cc.TypeQualifierConst {
			return true
		}
	}
	return false
}

func constSpecifiers(l *cc.DeclarationSpecifiers) bool {
	for ; l != nil; l = l.DeclarationSpecifiers {
		if l.TypeQualifier != nil && l.TypeQualifier.Case == cc.TypeQualifierConst {
			return true
		}
	}
	return false
}

// proto converts a function type.
func (r *reader) proto(header string, t *cc.FunctionType) (*model.Proto, error) {
	result, err := r.spell(header, t.Result())
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	p := &model.Proto{Result: result.String(), Params: []model.Param{}, Variadic: t.IsVariadic()}
	params := t.Parameters()
	if len(params) == 0 {
		return nil, fmt.Errorf("a function without parameter types; write (void) if it has none")
	}
	if len(params) == 1 && params[0].Type().Kind() == cc.Void {
		return p, nil
	}
	for i, a := range params {
		param := model.Param{Name: a.Name()}
		at := a.Type().Decay()
		if f := pointedFunction(at); f != nil && f.Typedef() == nil {
			if param.Func, err = r.proto(header, f); err != nil {
				return nil, fmt.Errorf("parameter %d: %w", i+1, err)
			}
		} else {
			spelled, err := r.spell(header, at)
			if err != nil {
				return nil, fmt.Errorf("parameter %d: %w", i+1, err)
			}
			spelled.Const = spelled.Const || a.Declarator != nil && r.isConst[a.Declarator]
			param.Type = spelled.String()
		}
		p.Params = append(p.Params, param)
	}
	return p, nil
}

// pointedFunction returns the function type that t points to, or nil.
func pointedFunction(t cc.Type) *cc.FunctionType {
	if p, ok := t.(*cc.PointerType); ok {
		if f, ok := p.Elem().(*cc.FunctionType); ok {
			return f
		}
	}
	return nil
}
