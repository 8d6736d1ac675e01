// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"cmp"
	"fmt"
	"slices"
)

// Check rejects a model that no header can produce, so that its users need no checks of their own.
func (r *Release) Check() error {
	if !isPlain(r.Project) || !isPlain(r.Name) || len(r.Targets) == 0 {
		return fmt.Errorf("missing project (%q), release (%q) or targets", r.Project, r.Name)
	}
	if err := r.checkNames(); err != nil {
		return err
	}
	records := map[string]*Record{}
	for i := range r.Headers {
		for j := range r.Headers[i].Records {
			rec := &r.Headers[i].Records[j]
			records[rec.CName()] = rec
		}
	}
	flexibles := NewFlexibles(func(cname string) *Record { return records[cname] })
	for i := range r.Headers {
		h := &r.Headers[i]
		for j := range h.Records {
			if tag := h.Records[j].Tag; !isName(tag) {
				return fmt.Errorf("%s: the tag %q of a record is not a C name", h.Name, tag)
			}
			if err := r.checkRecord(&h.Records[j], flexibles, 0); err != nil {
				return fmt.Errorf("%s: %s: %w", h.Name, h.Records[j].CName(), err)
			}
		}
		for _, e := range h.Enums {
			if len(e.Enumerators) == 0 || !slices.Contains([]int64{1, 2, 4, 8}, e.Size) {
				return fmt.Errorf("%s: enum %s has no enumerators or no size", h.Name, e.Tag)
			}
			if e.Tag != "" && !isName(e.Tag) {
				return fmt.Errorf("%s: enum %q has no C name", h.Name, e.Tag)
			}
			if err := checkPage(e.Man); err != nil {
				return fmt.Errorf("%s: enum %s: %w", h.Name, e.Tag, err)
			}
			for _, n := range e.Enumerators {
				if !isName(n.Name) || n.Value == "" {
					return fmt.Errorf("%s: enum %s: enumerator %q has no C name or no value", h.Name, e.Tag, n.Name)
				}
				if !e.Holds(n.Value) {
					return fmt.Errorf("%s: enum %s: %s is %s, beyond the enum's %d bytes", h.Name, e.Tag, n.Name,
						n.Value, e.Size)
				}
			}
		}
		for _, m := range h.Macros {
			if !isName(m.Name) {
				return fmt.Errorf("%s: macro %q has no C name", h.Name, m.Name)
			}
			if (m.Kind == Constant) != (m.Value != nil) ||
				(m.Kind == Alias) != (m.Target != "") {
				return fmt.Errorf("%s: macro %q is inconsistent", h.Name, m.Name)
			}
			if err := m.check(); err != nil {
				return fmt.Errorf("%s: macro %s: %w", h.Name, m.Name, err)
			}
		}
		for _, f := range slices.Concat(h.Funcs, h.FuncTypes) {
			if !isName(f.Name) {
				return fmt.Errorf("%s: function %q has no C name", h.Name, f.Name)
			}
			if err := cmp.Or(f.Proto.check(0), checkPage(f.Man)); err != nil {
				return fmt.Errorf("%s: %s: %w", h.Name, f.Name, err)
			}
			if err := f.Inline.check(); err != nil {
				return fmt.Errorf("%s: %s: inline function: %w", h.Name, f.Name, err)
			}
		}
	}
	for i := range r.Libraries {
		l := &r.Libraries[i]
		if err := l.check(); err != nil {
			return fmt.Errorf("library %q: %w", l.Name, err)
		}
		if r.Library(l.Name) != l {
			return fmt.Errorf("duplicate library %s", l.Name)
		}
	}
	for _, t := range r.Tables {
		if !isIdentifier(t.Name) {
			return fmt.Errorf("invalid table name %q", t.Name)
		}
		if err := t.check(); err != nil {
			return fmt.Errorf("table %s: %w", t.Name, err)
		}
		for _, row := range t.Rows {
			if len(row.Cells) != len(t.Columns) {
				return fmt.Errorf("table %s: row %s has %d cells for %d columns", t.Name, row.Name, len(row.Cells),
					len(t.Columns))
			}
		}
	}
	return nil
}

var inlineKinds = []InlineKind{Slot, ContextOp, ExtendedOp, Call, Compute, Logic}

// checkRecord checks a record at a nesting depth.
func (r *Release) checkRecord(rec *Record, flexibles *Flexibles, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("records nested more than %d deep", maxDepth)
	}
	if err := cmp.Or(checkPage(rec.Man), r.checkPer(rec.Size), r.checkPer(rec.Align)); err != nil {
		return err
	}
	if err := flexibles.Check(rec); err != nil {
		return err
	}
	switch rec.Kind {
	case Incomplete, Opaque:
		if len(rec.Fields) > 0 {
			return fmt.Errorf("%s with fields", rec.Kind)
		}
	case Struct, Union:
	default:
		return fmt.Errorf("unknown kind %q", rec.Kind)
	}
	if rec.Tag != "" && !isName(rec.Tag) {
		return fmt.Errorf("%q is not a C name", rec.Tag)
	}
	for _, target := range r.Targets {
		size, align := rec.Size.On(target), rec.Align.On(target)
		if size > MaxSize {
			return fmt.Errorf("%s: size %d exceeds the limit of %d bytes", target, size,
				MaxSize)
		}
		if rec.Kind != Incomplete && (size < 0 || align < 1 || align&(align-1) != 0 || size%align != 0) {
			return fmt.Errorf("%s: invalid size %d or alignment %d", target, size, align)
		}
	}
	for i := range rec.Fields {
		f := &rec.Fields[i]
		kinds := 0
		if f.Type != "" {
			kinds++
			if _, err := ParseType(f.Type); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		if f.Record != nil {
			kinds++
			if err := r.checkRecord(f.Record, flexibles, depth+1); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		if f.Func != nil {
			kinds++
			if err := f.Func.check(0); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		if kinds != 1 || (f.Name == "" && f.Record == nil) || (f.Name != "" && !isName(f.Name)) {
			return fmt.Errorf("field %d (%q) needs a name and exactly one type", i, f.Name)
		}
		if slices.ContainsFunc(f.Dims, func(n int64) bool { return n < Flexible || n > MaxSize }) {
			return fmt.Errorf("field %s: invalid array length %v", f.Name, f.Dims)
		}
		if err := cmp.Or(r.checkPer(f.Offset), r.checkPer(f.Size), r.checkBits(f)); err != nil {
			return fmt.Errorf("field %s: %w", f.Name, err)
		}
		if err := r.checkPlace(rec, i); err != nil {
			return err
		}
		for _, target := range r.Targets {
			if off := f.Offset.On(target); off < 0 || f.Size.On(target) < 0 ||
				f.Size.On(target) > rec.Size.On(target)-off {
				return fmt.Errorf("field %s: %s: %d bytes at %d extend past the record's %d", f.Name, target,
					f.Size.On(target), off, rec.Size.On(target))
			}
		}
	}
	return nil
}

// checkPlace rejects a member that overlaps the previous one, and a union member whose offset is not zero.
func (r *Release) checkPlace(rec *Record, i int) error {
	f := &rec.Fields[i]
	for _, target := range r.Targets {
		at := f.Offset.On(target)
		switch {
		case rec.Kind == Union && at != 0:
			return fmt.Errorf("field %s: %s: union member at offset %d instead of 0", f.Name, target, at)
		case rec.Kind == Struct && i > 0:
			before := &rec.Fields[i-1]
			end := before.Offset.On(target) + before.Size.On(target)
			if f.Bits != nil && before.Bits != nil { // they may share a byte
				if f.Bits.First.On(target) < before.Bits.First.On(target)+before.Bits.Width {
					return fmt.Errorf("field %s: %s: its bits overlap those of field %s", f.Name, target, before.Name)
				}
			} else if at < end {
				return fmt.Errorf("field %s: %s: offset %d overlaps field %s, which ends at %d",
					f.Name, target, at, before.Name, end)
			}
		}
	}
	return nil
}

// checkBits rejects an empty bitfield and one that does not fit the bytes that it occupies.
func (r *Release) checkBits(f *Field) error {
	if f.Bits == nil {
		return nil
	}
	t, err := ParseType(f.Type)
	if err != nil || t.Pointers > 0 || len(t.Dims) > 0 || f.Bits.Width < 1 || f.Bits.Width > 64 {
		return fmt.Errorf("invalid bitfield of %d bits with type %q", f.Bits.Width, f.Type)
	}
	for _, target := range r.Targets {
		first := f.Bits.First.On(target)
		if first/8 != f.Offset.On(target) || (first+f.Bits.Width+7)/8-first/8 != f.Size.On(target) {
			return fmt.Errorf("%s: bits from %d on are not within the %d bytes at %d", target, first, f.Size.On(target),
				f.Offset.On(target))
		}
	}
	return r.checkPer(f.Bits.First)
}

// check checks a function type that is nested depth levels deep in the parameters of others.
func (p *Proto) check(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("function types nested more than %d deep", maxDepth)
	}
	if _, err := ParseType(p.Result); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	for i, a := range p.Params {
		if (a.Type != "") == (a.Func != nil) {
			return fmt.Errorf("parameter %d needs exactly one type", i)
		}
		if a.Name != "" && !isName(a.Name) {
			return fmt.Errorf("parameter %d: %q is not a C name", i, a.Name)
		}
		if a.Func != nil {
			if err := a.Func.check(depth + 1); err != nil {
				return fmt.Errorf("parameter %d: %w", i, err)
			}
			continue
		}
		if _, err := ParseType(a.Type); err != nil {
			return fmt.Errorf("parameter %d: %w", i, err)
		}
	}
	return nil
}
