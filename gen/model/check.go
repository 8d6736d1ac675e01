package model

import (
	"fmt"
	"slices"
)

// check refuses a model that no header could have given, so that what reads it need not.
func (r *Release) check() error {
	if r.Name == "" || len(r.Targets) == 0 {
		return fmt.Errorf("model names no release or no targets")
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		if h.Name == "" {
			return fmt.Errorf("header %d has no name", i)
		}
		for j := range h.Records {
			if h.Records[j].Tag == "" {
				return fmt.Errorf("%s: a record without a tag", h.Name)
			}
			if err := r.checkRecord(&h.Records[j]); err != nil {
				return fmt.Errorf("%s: %s: %w", h.Name, h.Records[j].CName(), err)
			}
		}
		for _, e := range h.Enums {
			if len(e.Enumerators) == 0 || !slices.Contains([]int64{1, 2, 4, 8}, e.Size) {
				return fmt.Errorf("%s: enum %s has no enumerators or no size", h.Name, e.Tag)
			}
			for _, n := range e.Enumerators {
				if !isIdentifier(n.Name) || n.Value == "" {
					return fmt.Errorf("%s: enum %s: enumerator %q has no C name or no value", h.Name, e.Tag, n.Name)
				}
			}
		}
		for _, m := range h.Macros {
			if !isIdentifier(m.Name) || (m.Kind == Constant) != (m.Value != nil) || (m.Kind == Alias) != (m.Target != "") {
				return fmt.Errorf("%s: macro %q does not hold together", h.Name, m.Name)
			}
		}
		for _, f := range h.Funcs {
			if !isIdentifier(f.Name) {
				return fmt.Errorf("%s: function %q has no C name", h.Name, f.Name)
			}
			if err := f.Proto.check(); err != nil {
				return fmt.Errorf("%s: %s: %w", h.Name, f.Name, err)
			}
			if f.Inline != nil && !slices.Contains(inlineKinds, f.Inline.Kind) {
				return fmt.Errorf("%s: %s: unknown kind of inline function %q", h.Name, f.Name, f.Inline.Kind)
			}
		}
	}
	for _, t := range r.Tables {
		for _, row := range t.Rows {
			if len(row.Cells) != len(t.Columns) {
				return fmt.Errorf("table %s: row %s has %d cells for %d columns", t.Name, row.Name, len(row.Cells), len(t.Columns))
			}
		}
	}
	return nil
}

var inlineKinds = []InlineKind{Slot, ContextOp, ExtendedOp, Call, Compute, Logic}

func (r *Release) checkRecord(rec *Record) error {
	switch rec.Kind {
	case Incomplete, Opaque:
		if len(rec.Fields) > 0 {
			return fmt.Errorf("%s with fields", rec.Kind)
		}
	case Struct, Union:
	default:
		return fmt.Errorf("unknown kind %q", rec.Kind)
	}
	if rec.Tag != "" && !isIdentifier(rec.Tag) {
		return fmt.Errorf("%q is not a C name", rec.Tag)
	}
	for _, target := range r.Targets {
		size, align := rec.Size.On(target), rec.Align.On(target)
		if rec.Kind != Incomplete && (size < 0 || align < 1 || align&(align-1) != 0 || size%align != 0) {
			return fmt.Errorf("%s: size %d and alignment %d do not go together", target, size, align)
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
			if err := r.checkRecord(f.Record); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		if f.Func != nil {
			kinds++
			if err := f.Func.check(); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		if kinds != 1 || (f.Name == "" && f.Record == nil) || (f.Name != "" && !isIdentifier(f.Name)) {
			return fmt.Errorf("field %d (%q) has no name or not exactly one type", i, f.Name)
		}
		for _, target := range r.Targets {
			if off := f.Offset.On(target); off < 0 || f.Size.On(target) < 0 || off+f.Size.On(target) > rec.Size.On(target) {
				return fmt.Errorf("field %s: %s: %d bytes at %d reach past the record's %d", f.Name, target, f.Size.On(target), off, rec.Size.On(target))
			}
		}
	}
	return nil
}

func (p *Proto) check() error {
	if _, err := ParseType(p.Result); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	for i, a := range p.Params {
		if (a.Type != "") == (a.Func != nil) {
			return fmt.Errorf("parameter %d has not exactly one type", i)
		}
		if a.Func != nil {
			if err := a.Func.check(); err != nil {
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
