// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// cType is a C type in the debug information of a library or a kernel. It is read from DWARF or BTF and converted to a
// model, which is compared like the model of headers.
type cType struct {
	kind    typeKind
	name    string // tag, or name of a base type or a typedef; empty for an untagged record or enumeration
	size    int64  // bytes
	align   int64  // alignment from an attribute, or 0
	elem    *cType // element of a pointer, array, qualifier or typedef; result of a function; nil for void
	count   int64  // number of elements of an array, or model.Flexible
	members []cMember
	values  []model.Enumerator
	params  []*cType
	// variadic is set for a function with "...".
	variadic bool
	// load reads members, values and params. It is set to nil when it is called.
	load func(t *cType) error
}

type typeKind int

const (
	baseKind typeKind = iota
	pointerKind
	arrayKind
	structKind
	unionKind
	enumKind
	typedefKind
	constKind
	qualifierKind // volatile, restrict, _Atomic and attributes
	functionKind
)

// cMember is a member of a structure or union.
type cMember struct {
	name  string
	typ   *cType
	first int64 // offset in the record, in bits
	width int64 // width of a bitfield in bits; 0 for other members
	align int64 // alignment from an attribute, or 0
}

// Limits of a type. Corrupt debug information that exceeds them is an error.
const (
	maxTypeDepth = 64
	maxMembers   = 1 << 16
)

// walk limits the conversion of types, which may contain one another.
type walk struct{ depth, steps, total int }

// Limits of the members of one type and of all types.
const (
	maxSteps = 1 << 16
	maxTotal = 1 << 23
)

// start begins another type.
func (w *walk) start() { w.depth, w.steps = 0, 0 }

func (w *walk) down() error {
	w.depth++
	w.steps++
	w.total++
	switch {
	case w.steps > maxSteps:
		return fmt.Errorf("a type has more than %d members", maxSteps)
	case w.total > maxTotal:
		return fmt.Errorf("all types have more than %d members", maxTotal)
	}
	if w.depth > maxTypeDepth {
		return errNested
	}
	return nil
}

func (w *walk) up() { w.depth-- }

var errNested = fmt.Errorf("types are nested more than %d deep", maxTypeDepth)

// key returns the model's spelling of the type, such as "struct ibv_wc", "enum ibv_mtu" or "pthread_mutex_t".
func (t *cType) key() string {
	switch t.kind {
	case structKind:
		return "struct " + t.name
	case unionKind:
		return "union " + t.name
	case enumKind:
		return "enum " + t.name
	}
	return t.name
}

// loaded reads the type's members if necessary and returns the type.
func (t *cType) loaded() (*cType, error) {
	if load := t.load; load != nil {
		t.load = nil
		if err := load(t); err != nil {
			return nil, err
		}
		if len(t.members)+len(t.values)+len(t.params) > maxMembers {
			return nil, fmt.Errorf("more than %d members", maxMembers)
		}
	}
	return t, nil
}

// unqualified removes qualifiers, and if all is set typedefs, too. isConst reports whether a qualifier was const. u is
// nil for void.
func (t *cType) unqualified(all bool) (u *cType, isConst bool, err error) {
	for range maxTypeDepth {
		switch {
		case t == nil:
			return nil, isConst, nil
		case t.kind == constKind:
			isConst = true
		case t.kind == qualifierKind || all && t.kind == typedefKind:
		default:
			return t, isConst, nil
		}
		t = t.elem
	}
	return nil, false, errNested
}

func (t *cType) is(kinds ...typeKind) bool { return t != nil && slices.Contains(kinds, t.kind) }

// spell returns the model's spelling of a type, as package parse spells it: typedefs of pointers, arrays and tagged
// records are replaced by their types, and other typedefs keep their names.
func (t *cType) spell() (model.Type, error) {
	var m model.Type
	for range maxTypeDepth {
		plain, _, err := t.unqualified(true)
		if err != nil {
			return m, err
		}
		named, isConst, err := t.unqualified(false)
		if err != nil {
			return m, err
		}
		switch {
		case named == nil:
			m.Base, m.Const = "void", isConst
			return m, nil
		case plain.is(arrayKind):
			m.Dims = append(m.Dims, plain.count)
			t = plain.elem
			if isConst {
				t = &cType{kind: constKind, elem: t}
			}
			continue
		case plain.is(pointerKind):
			m.Pointers++
			t = plain.elem
			continue
		case plain.is(structKind, unionKind) && plain.name != "":
			_, isConst, _ = t.unqualified(true)
			m.Base = plain.key()
		case named.kind == typedefKind:
			m.Base = named.name
		case plain.is(structKind, unionKind, enumKind) && plain.name == "":
			return m, errors.New("an untagged type where a named type is required")
		case plain.kind == baseKind:
			m.Base = baseName(plain.name)
		case plain.kind == enumKind:
			m.Base = plain.key()
		default:
			return m, errors.New("a function where another type is required")
		}
		m.Const = isConst
		return m, nil
	}
	return m, errNested
}

// baseName returns the model's spelling of a base type: compilers write "long unsigned int" or "unsigned long".
func baseName(name string) string {
	words := strings.Fields(name)
	has := func(word string) bool { return slices.Contains(words, word) }
	sign := ""
	if has("unsigned") {
		sign = "unsigned "
	}
	longs := len(slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w != "long" }))
	switch {
	case has("double") || has("float"):
		return name
	case has("char") && has("signed"):
		return "signed char"
	case has("char"):
		return sign + "char"
	case has("short"):
		return sign + "short"
	case longs > 0:
		return sign + strings.TrimSpace(strings.Repeat("long ", longs))
	case has("int") || has("unsigned"):
		return sign + "int"
	}
	return name
}

// bytes returns the size of a type.
func (t *cType) bytes() (int64, error) {
	count := int64(1)
	for range maxTypeDepth {
		u, _, err := t.unqualified(true)
		switch {
		case err != nil:
			return 0, err
		case u == nil || u.kind == functionKind:
			return 0, errors.New("a member without a size")
		case u.kind != arrayKind:
			if u.size < 0 || u.size > model.MaxSize || count*u.size > model.MaxSize {
				return 0, fmt.Errorf("%d times %d bytes exceed the limit of %d", count, u.size, model.MaxSize)
			}
			return count * u.size, nil
		case u.count == model.Flexible:
			count = 0
		case u.count < 0 || u.count > model.MaxSize || count*u.count > model.MaxSize:
			return 0, fmt.Errorf("an array of %d elements exceeds the limit of %d bytes", u.count, model.MaxSize)
		default:
			count *= u.count
		}
		t = u.elem
	}
	return 0, errNested
}

// alignment returns a type's alignment: from an attribute, or that of its members. It returns 0 if the type may be
// packed, which debug information does not contain.
func (t *cType) alignment(w *walk) (int64, error) {
	if err := w.down(); err != nil {
		return 0, err
	}
	defer w.up()
	switch {
	case t == nil || t.kind == functionKind:
		return 1, nil
	case t.align > 0:
		return t.align, nil
	case t.is(typedefKind, constKind, qualifierKind, arrayKind):
		return t.elem.alignment(w)
	case !t.is(structKind, unionKind):
		return t.size, nil
	}
	if _, err := t.loaded(); err != nil {
		return 0, err
	}
	align := int64(1)
	for _, m := range t.members {
		own, err := m.typ.alignment(w)
		if err != nil || own == 0 {
			return 0, err
		}
		if m.align > own {
			own = m.align
		}
		if m.width == 0 && m.first%(8*own) != 0 {
			return 0, nil
		}
		align = max(align, own)
	}
	if t.size%align != 0 {
		return 0, nil
	}
	return align, nil
}

// record returns the model of a structure or union.
func (t *cType) record(w *walk) (*model.Record, error) {
	if err := w.down(); err != nil {
		return nil, err
	}
	defer w.up()
	if _, err := t.loaded(); err != nil {
		return nil, err
	}
	if t.size < 0 || t.size > model.MaxSize {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", t.size, model.MaxSize)
	}
	rec := &model.Record{Kind: model.Struct, Tag: t.name, Size: model.Same(t.size)}
	if t.kind == unionKind {
		rec.Kind = model.Union
	}
	align, err := t.alignment(w)
	if err != nil {
		return nil, err
	}
	rec.Align = model.Same(align)
	for _, m := range t.members {
		f, err := m.field(w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		if f != nil {
			rec.Fields = append(rec.Fields, *f)
		}
	}
	return rec, nil
}

// field returns the model of a member, or nil for a member that models omit.
func (m cMember) field(w *walk) (*model.Field, error) {
	f := &model.Field{Name: m.name, Offset: model.Same(m.first / 8)}
	size, err := m.typ.bytes()
	if err != nil {
		return nil, err
	}
	f.Size = model.Same(size)
	if m.width > 0 {
		if m.name == "" {
			return nil, nil
		}
		f.Bits = &model.Bits{First: model.Same(m.first), Width: m.width}
		f.Size = model.Same((m.first+m.width+7)/8 - m.first/8)
	}
	elem := m.typ
	var lengths []int64
	for range maxTypeDepth {
		u, _, err := elem.unqualified(true)
		if err != nil {
			return nil, err
		}
		if !u.is(arrayKind) {
			break
		}
		lengths = append(lengths, u.count)
		elem = u.elem
	}
	plain, _, err := elem.unqualified(true)
	if err != nil {
		return nil, err
	}
	named, _, err := elem.unqualified(false)
	switch {
	case err != nil:
		return nil, err
	case named.is(structKind, unionKind) && named.name == "":
		f.Dims = lengths
		f.Record, err = named.record(w)
		if err == nil && f.Record.Size.Default == 0 && len(f.Record.Fields) == 0 && strings.HasPrefix(m.name, "__empty_") {
			return nil, nil // the kernel puts it before a flexible array in a union
		}
		return f, err
	case plain.is(pointerKind):
		target, _, err := plain.elem.unqualified(true)
		if err != nil {
			return nil, err
		}
		if target.is(functionKind) {
			f.Dims = lengths
			f.Func, err = target.proto(w)
			return f, err
		}
	}
	spelled, err := m.typ.spell()
	f.Type = spelled.String()
	return f, err
}

// proto returns the model of a function type.
func (t *cType) proto(w *walk) (*model.Proto, error) {
	if err := w.down(); err != nil {
		return nil, err
	}
	defer w.up()
	if _, err := t.loaded(); err != nil {
		return nil, err
	}
	result, err := t.elem.spell()
	if err != nil {
		return nil, err
	}
	p := &model.Proto{Result: result.String(), Params: []model.Param{}, Variadic: t.variadic}
	for _, param := range t.params {
		var m model.Param
		named, _, err := param.unqualified(false)
		if err != nil {
			return nil, err
		}
		if named.is(pointerKind) && named.elem.is(functionKind) {
			m.Func, err = named.elem.proto(w)
		} else {
			var spelled model.Type
			spelled, err = param.spell()
			m.Type = spelled.String()
		}
		if err != nil {
			return nil, err
		}
		p.Params = append(p.Params, m)
	}
	return p, nil
}

// enum returns the model of an enumeration.
func (t *cType) enum() (*model.Enum, error) {
	if _, err := t.loaded(); err != nil {
		return nil, err
	}
	e := &model.Enum{Tag: t.name, Size: t.size, Enumerators: t.values}
	e.Signed = slices.ContainsFunc(t.values, func(v model.Enumerator) bool { return v.Value.Negative() })
	return e, nil
}
