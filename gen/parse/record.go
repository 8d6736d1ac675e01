// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"strings"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// recordTagged records a tagged structure or union.
func (r *reader) recordTagged(name string) error {
	at := r.records[name]
	if at.done {
		return nil
	}
	at.done = true
	rec, err := r.record(at.header, at.spec)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.pos(at.spec.Position()), name, err)
	}
	h := r.header(at.header, at.public)
	h.Records = append(h.Records, *rec)
	return nil
}

// composite is the common interface of cc's structure and union types.
type composite interface {
	cc.Type
	NumFields() int
	FieldByIndex(i int) *cc.Field
}

// record parses a structure or union definition and computes its layout.
func (r *reader) record(header string, spec *cc.StructOrUnionSpecifier) (*model.Record, error) {
	t, ok := spec.Type().(composite)
	if !ok {
		return nil, fmt.Errorf("the C parser gave no layout (%T)", spec.Type())
	}
	attrs, err := r.attributes(spec.AttributeSpecifierList, spec.AttributeSpecifierList2)
	if err != nil {
		return nil, err
	}
	bits := hasBits(t)
	if at, found := r.alignedMember(spec); found && (attrs.packed || bits) {
		return nil, fmt.Errorf("%s: an aligned member of a structure that is packed or has bitfields is not "+
			"supported", r.pos(at))
	}
	rec := &model.Record{Kind: model.RecordKind(recordKind(spec)), Tag: spec.Token.SrcStr(), Packed: attrs.packed}
	lay := layout{union: rec.Kind == model.Union, packed: attrs.packed, align: 1}
	for i := range t.NumFields() {
		f := t.FieldByIndex(i)
		if f.IsBitfield() {
			m, err := r.bitfield(header, f, &lay)
			if err != nil {
				return nil, fmt.Errorf("member %d (%s): %w", i+1, f.Name(), err)
			}
			if m != nil {
				rec.Fields = append(rec.Fields, *m)
			}
			continue
		}
		m, size, align, err := r.field(header, f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		offset := lay.place(size, align)
		if lay.end > model.MaxSize {
			return nil, fmt.Errorf("%s: %d bytes at %d exceed the limit of %d bytes", f.Name(),
				size, offset, model.MaxSize)
		}
		if !r.hasPacked(t) && offset != f.Offset() {
			return nil, fmt.Errorf("%s: the C parser puts it at %d, this generator at %d", f.Name(), f.Offset(), offset)
		}
		m.Offset, m.Size = model.Same(offset), model.Same(size)
		rec.Fields = append(rec.Fields, *m)
	}
	if err := model.NewFlexibles(r.findRecord).Check(rec); err != nil {
		return nil, err
	}
	size, align := lay.finish(attrs.align)
	if !r.hasPacked(t) && (size != t.Size() || align != int64(t.Align())) {
		return nil, fmt.Errorf("the C parser computes %d bytes aligned to %d, this generator %d aligned to %d; "+
			"aligned members are not supported", t.Size(), t.Align(), size, align)
	}
	rec.Size, rec.Align = model.Same(size), model.Same(align)
	return rec, nil
}

// field converts one member and returns its size and alignment.
func (r *reader) field(header string, f *cc.Field) (m *model.Field, size, align int64, err error) {
	m = &model.Field{Name: f.Name()}
	t := f.Type()
	if decl := f.Declarator(); decl != nil && decl.Alignas() > 0 {
		return nil, 0, 0, fmt.Errorf("_Alignas is not supported; write __attribute__((aligned(N)))")
	}
	trailing, err := r.attributes(r.trailing[f.Declarator()])
	if err != nil {
		return nil, 0, 0, err
	}
	asked := max(trailing.align, 1) // from the member's own attribute
	elem := t
	var dims []int64
	count := int64(1)
	for {
		a, ok := elem.(*cc.ArrayType)
		if !ok || elem.Typedef() != nil && elem.Kind() != cc.Array {
			break
		}
		n := a.Len()
		if a.IsIncomplete() {
			n = model.Flexible
			count = 0
		} else {
			if n < 0 || n > model.MaxSize || count*n > model.MaxSize {
				return nil, 0, 0, fmt.Errorf("an array of %d times %d elements exceeds the limit of %d "+
					"bytes", count, n, model.MaxSize)
			}
			count *= n
		}
		if len(dims) > 0 && n <= 0 {
			return nil, 0, 0, fmt.Errorf("an array of arrays without elements is not supported")
		}
		dims = append(dims, n)
		elem = a.Elem()
	}
	if spec := r.untaggedSpec(elem); spec != nil {
		if m.Record, err = r.record(header, spec); err != nil {
			return nil, 0, 0, err
		}
		m.Dims = dims
		return m, count * m.Record.Size.Default, max(m.Record.Align.Default, asked), nil
	}
	if fn := pointedFunction(elem); fn != nil {
		if m.Func, err = r.proto(header, fn); err != nil {
			return nil, 0, 0, err
		}
		m.Dims = dims
		return m, count * elem.Size(), max(int64(elem.FieldAlign()), asked), nil
	}
	spelled, err := r.spell(header, t)
	if err != nil {
		return nil, 0, 0, err
	}
	spelled.Const = spelled.Const || r.isConst[f.Declarator()]
	m.Type = spelled.String()
	size, align = elem.Size(), int64(elem.FieldAlign())
	if kind, _ := spelled.Tag(); spelled.Pointers == 0 && (kind == "struct" || kind == "union") {
		if size, align, err = r.taggedLayout(spelled.Base); err != nil {
			return nil, 0, 0, err
		}
	}
	return m, count * size, max(align, asked), nil
}

// bitfield converts and places one bitfield. For an unnamed one, which is padding, it returns nil.
func (r *reader) bitfield(header string, f *cc.Field, lay *layout) (*model.Field, error) {
	t := f.Type()
	abi, ok := r.ast.ABI.Types[t.Kind()] // cc gives the type the size of the bitfield
	if !ok {
		return nil, fmt.Errorf("a bitfield of type %s is not supported", t)
	}
	width, align := f.ValueBits(), int64(abi.FieldAlign)
	if width == 0 && lay.packed {
		return nil, fmt.Errorf("a bitfield of 0 bits in a packed structure is not supported")
	}
	if f.Name() == "" && align > lay.align {
		return nil, fmt.Errorf("an unnamed bitfield whose type has the largest alignment: whether it aligns the " +
			"structure depends on the target; give it a name")
	}
	first := lay.placeBits(abi.Size, align, width)
	if lay.end > model.MaxSize {
		return nil, fmt.Errorf("beyond the limit of %d bytes", model.MaxSize)
	}
	if f.Name() == "" {
		return nil, nil
	}
	spelled, err := r.spell(header, t)
	if err != nil {
		return nil, err
	}
	spelled.Const = spelled.Const || r.isConst[f.Declarator()]
	return &model.Field{Name: f.Name(), Type: spelled.String(), Offset: model.Same(first / 8),
		Size: model.Same((first+width+7)/8 - first/8), Bits: &model.Bits{First: model.Same(first), Width: width}}, nil
}

// hasBits reports whether a record has bitfields. cc lays them out differently.
func hasBits(t composite) bool {
	for i := range t.NumFields() {
		if t.FieldByIndex(i).IsBitfield() {
			return true
		}
	}
	return false
}

// untaggedSpec returns the definition of an untagged structure or union that is used as a type.
func (r *reader) untaggedSpec(t cc.Type) *cc.StructOrUnionSpecifier {
	if t.Typedef() != nil {
		return nil
	}
	if spec := r.specs[t]; spec != nil && spec.Token.SrcStr() == "" {
		return spec
	}
	return nil
}

// taggedLayout returns the size and alignment of a tagged record as computed by this package. They differ from cc's if
// anything in it is packed.
func (r *reader) taggedLayout(name string) (size, align int64, err error) {
	at := r.records[name]
	if at == nil {
		return 0, 0, fmt.Errorf("%s is not defined", name)
	}
	if err := r.recordTagged(name); err != nil {
		return 0, 0, err
	}
	if rec := r.recorded(at, name); rec != nil {
		return rec.Size.Default, rec.Align.Default, nil
	}
	return 0, 0, fmt.Errorf("%s contains itself", name)
}

// findRecord returns the record with a C name, or nil.
func (r *reader) findRecord(name string) *model.Record {
	if at := r.records[name]; at != nil {
		return r.recorded(at, name)
	}
	return nil
}

// recorded returns a tagged record if it has been recorded, or nil.
func (r *reader) recorded(at *located, name string) *model.Record {
	all := r.header(at.header, at.public).Records
	for i := range all {
		if kind, tag, _ := strings.Cut(name, " "); all[i].Tag == tag && string(all[i].Kind) == kind {
			return &all[i]
		}
	}
	return nil
}

// hasPacked reports whether a type contains a record that is packed or has bitfields, whose layout cc computes wrong.
func (r *reader) hasPacked(t cc.Type) bool {
	for {
		a, ok := t.(*cc.ArrayType)
		if !ok {
			break
		}
		t = a.Elem()
	}
	c, ok := t.(composite)
	if !ok {
		return false
	}
	if spec := r.specOf(c); spec != nil {
		if attrs, err := r.attributes(spec.AttributeSpecifierList, spec.AttributeSpecifierList2); err == nil &&
			attrs.packed {
			return true
		}
	}
	if hasBits(c) {
		return true
	}
	for i := range c.NumFields() {
		if r.hasPacked(c.FieldByIndex(i).Type()) {
			return true
		}
	}
	return false
}

func (r *reader) specOf(t composite) *cc.StructOrUnionSpecifier {
	if spec := r.specs[t]; spec != nil {
		return spec
	}
	kind := "struct"
	if t.Kind() == cc.Union {
		kind = "union"
	}
	if at := r.records[kind+" "+tagOf(t)]; at != nil {
		return at.spec
	}
	return nil
}
