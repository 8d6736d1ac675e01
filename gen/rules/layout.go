// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// variant lays out a record as a Go struct for one target: padding is explicit, unions are storage, and members that Go
// cannot place are bytes.
func (r *resolver) variant(rec *model.Record, path, target string) (*Variant, []Access, error) {
	v := &Variant{Targets: []string{target}, Size: rec.Size.On(target), Align: rec.Align.On(target)}
	b := builder{r: r, path: path, target: target, v: v}
	switch rec.Kind {
	case model.Incomplete:
		return v, nil, nil
	case model.Opaque:
		return v, nil, b.whole("opaque")
	case model.Union:
		if err := b.whole("storage"); err != nil {
			return nil, nil, err
		}
		err := b.arms(rec, path, "storage", 0, 0)
		return v, b.access, err
	}
	if err := b.fields(rec, path, 0); err != nil {
		return nil, nil, err
	}
	b.pad(v.Size)
	return v, b.access, b.checkAlign(rec)
}

type builder struct {
	r      *resolver
	path   string
	target string
	v      *Variant
	access []Access
	end    int64
	align  int64
	run    *Member // the bytes of the last bitfields, if no other member follows
}

// whole represents the record as one array.
func (b *builder) whole(name string) error {
	t, err := storage(b.v.Size, b.v.Align)
	if err != nil {
		return err
	}
	b.v.Members = []Member{{Go: name, Type: t, Size: b.v.Size}}
	return nil
}

// pad adds padding up to an offset.
func (b *builder) pad(to int64) {
	if to > b.end {
		b.v.Members = append(b.v.Members,
			Member{Go: "_", Type: GoType{Name: "byte", Dims: []int64{to - b.end}}, Offset: b.end, Size: to - b.end})
		b.end = to
	}
}

func (b *builder) add(m Member, align int64) error {
	if m.Offset < b.end {
		return fmt.Errorf("%s: member %s at %d overlaps the one before it", b.target, m.Go, m.Offset)
	}
	b.pad(m.Offset)
	b.run = nil
	b.v.Members = append(b.v.Members, m)
	b.end = m.Offset + m.Size
	b.align = max(b.align, align)
	return nil
}

// fields adds the members of a structure that starts at base, including those of unnamed structures in it.
func (b *builder) fields(rec *model.Record, path string, base int64) error {
	for i := range rec.Fields {
		f := &rec.Fields[i]
		offset, size := base+f.Offset.On(b.target), f.Size.On(b.target)
		if f.Name == "" {
			var err error
			if f.Record.Kind == model.Union {
				err = b.unnamedUnion(f.Record, path, base+f.Offset.On(b.target), base+f.Offset.Default)
			} else {
				err = b.fields(f.Record, path, offset)
			}
			if err != nil {
				return err
			}
			continue
		}
		t, notes, err := b.r.memberType(f, path+"."+f.Name)
		if err != nil {
			return err
		}
		name := FieldName(f.Name)
		if f.Bits != nil {
			if err := b.bits(f, name, t, notes, base); err != nil {
				return err
			}
			continue
		}
		if trails(t.Dims) {
			t.Dims = t.Dims[1:]
			b.access = append(b.access,
				Access{C: f.Name, Kind: Trailing, Go: name, Type: t, Delta: offset, Notes: notes})
			continue
		}
		align := b.r.alignOf(f, b.target)
		if offset%align != 0 || align > b.v.Align {
			bytes := Member{C: f.Name, Go: name + "Bytes", Type: GoType{Name: "byte", Dims: []int64{size}},
				Offset: offset, Size: size}
			b.access = append(b.access,
				Access{C: f.Name, Kind: Unaligned, Go: name, Type: t, Storage: bytes.Go, Size: size, Notes: notes})
			if err := b.add(bytes, 1); err != nil {
				return err
			}
			continue
		}
		if err := b.add(Member{C: f.Name, Go: name, Type: t, Offset: offset, Size: size, Notes: notes},
			align); err != nil {
			return err
		}
	}
	return nil
}

// bits adds a bitfield of a structure that starts at base: its accessors, and the bytes that it shares with adjacent
// bitfields.
func (b *builder) bits(f *model.Field, name string, t GoType, notes []string, base int64) error {
	first := 8*base + f.Bits.First.On(b.target)
	start, end := first/8, (first+f.Bits.Width+7)/8
	if b.run == nil || start > b.end {
		m := Member{Go: fmt.Sprintf("bits%d", start), Type: GoType{Name: "byte", Dims: []int64{end - start}},
			Offset: start, Size: end - start}
		if err := b.add(m, 1); err != nil {
			return err
		}
		b.run = &b.v.Members[len(b.v.Members)-1]
	} else if end > b.end {
		b.run.Size = end - b.run.Offset
		b.run.Type.Dims[0], b.end = b.run.Size, end
	}
	return b.bitfield(f, name, t, notes, b.run.Go, first-8*b.run.Offset)
}

// bitfield adds the accessors of a bitfield at a bit offset in the storage.
func (b *builder) bitfield(f *model.Field, name string, t GoType, notes []string, storage string, first int64) error {
	if strings.HasPrefix(t.Name, "BE") || t.Name == "uintptr" {
		return fmt.Errorf("%s: a bitfield of type %s is not supported", f.Name, f.Type)
	}
	b.access = append(b.access, Access{C: f.Name, Kind: Bits, Go: name, Type: t, Storage: storage, Delta: first,
		Size: f.Bits.Width, Notes: notes})
	return nil
}

// trails reports whether an array has no elements: a flexible array, or one of length 0 in older headers.
func trails(dims []int64) bool { return len(dims) > 0 && dims[0] <= 0 }

// unnamedUnion adds storage for an unnamed union, named after its offset on the default target. Its arms become methods
// of the enclosing record.
func (b *builder) unnamedUnion(u *model.Record, path string, offset, defaultOffset int64) error {
	name := fmt.Sprintf("union%d", defaultOffset)
	if u.Size.On(b.target) > 0 { // a union without size has only flexible arrays; an empty Go field could add padding
		t, err := storage(u.Size.On(b.target), u.Align.On(b.target))
		if err != nil {
			return err
		}
		if err := b.add(Member{Go: name, Type: t, Offset: offset, Size: u.Size.On(b.target)},
			u.Align.On(b.target)); err != nil {
			return err
		}
	}
	return b.arms(u, path, name, 0, offset)
}

// arms adds accessors for the members of a union, or of an unnamed structure in one. The members start delta bytes
// after the start of the storage, which is at base in the record.
func (b *builder) arms(u *model.Record, path, storage string, delta, base int64) error {
	for i := range u.Fields {
		f := &u.Fields[i]
		at := delta + f.Offset.On(b.target)
		if f.Name == "" {
			if err := b.arms(f.Record, path, storage, at, base); err != nil {
				return err
			}
			continue
		}
		t, notes, err := b.r.memberType(f, path+"."+f.Name)
		if err != nil {
			return err
		}
		if trails(t.Dims) {
			t.Dims = t.Dims[1:]
			b.access = append(b.access,
				Access{C: f.Name, Kind: Trailing, Go: FieldName(f.Name), Type: t, Delta: base + at, Notes: notes})
			continue
		}
		if f.Bits != nil {
			first := 8*delta + f.Bits.First.On(b.target)
			if err := b.bitfield(f, FieldName(f.Name), t, notes, storage, first); err != nil {
				return err
			}
			continue
		}
		if at%b.r.alignOf(f, b.target) != 0 {
			return fmt.Errorf("%s: an unaligned arm of a union is not supported", f.Name)
		}
		b.access = append(b.access,
			Access{C: f.Name, Kind: Arm, Go: FieldName(f.Name), Type: t, Storage: storage, Delta: at,
				Size: f.Size.On(b.target), Notes: notes})
	}
	return nil
}

// checkAlign rejects a structure whose alignment would differ in Go.
func (b *builder) checkAlign(rec *model.Record) error {
	if got := max(b.align, 1); got != b.v.Align && len(rec.Fields) > 0 {
		return b.raiseAlign(got)
	}
	return nil
}

// raiseAlign implements the aligned attribute of a structure with a first member of size zero.
func (b *builder) raiseAlign(from int64) error {
	t, err := storage(0, b.v.Align)
	if err != nil || from > b.v.Align {
		return fmt.Errorf("%s: C aligns it to %d, Go to %d, which is not supported", b.target, b.v.Align, from)
	}
	b.v.Members = slices.Insert(b.v.Members, 0, Member{Go: "_", Type: t, Notes: []string{"aligns"}})
	return nil
}

// alignOf returns the alignment of a member's Go type on 64-bit Linux.
func (r *resolver) alignOf(f *model.Field, target string) int64 {
	if f.Func != nil {
		return 8
	}
	if f.Record != nil {
		return f.Record.Align.On(target)
	}
	t, _ := model.ParseType(f.Type)
	if t.Pointers > 0 {
		return 8
	}
	for i := range r.in.Release.Headers {
		h := &r.in.Release.Headers[i]
		for j := range h.Records {
			if h.Records[j].CName() == t.Base {
				return h.Records[j].Align.On(target)
			}
		}
	}
	size := f.Size.On(target)
	for _, n := range t.Dims {
		if n > 0 {
			size /= n
		}
	}
	if size == 0 { // a flexible array has the alignment of its elements
		name, _ := r.scalar(t.Base)
		size = scalarSize[name]
	}
	return max(size, 1)
}

// unaligned reports whether a member of a structure is stored as bytes. The result is the same on all targets, since
// the text would differ otherwise.
func (r *resolver) unaligned(f *model.Field, rec *model.Record) bool {
	target := r.plan.Targets[0]
	align := r.alignOf(f, target)
	return f.Offset.On(target)%align != 0 || align > rec.Align.On(target)
}

var scalarSize = map[string]int64{
	"bool": 1, "byte": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "BE16": 2, "int32": 4, "uint32": 4, "BE32": 4,
	"int64": 8, "uint64": 8, "BE64": 8, "uintptr": 8,
}
