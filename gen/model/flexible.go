// SPDX-License-Identifier: BSD-2-Clause

package model

import "fmt"

// Flexible reports whether the field is an array without a length of its own: [], or [0] as it was written before.
func (f *Field) Flexible() bool {
	dims := f.Dims
	if t, err := ParseType(f.Type); err == nil {
		dims = t.Dims
	}
	return len(dims) > 0 && dims[0] <= 0
}

// Flexibles knows which records end with a flexible array.
type Flexibles struct {
	find func(cname string) *Record // nil if there is none
	ends map[*Record]bool           // as far as it was asked
}

// NewFlexibles looks records up by their C names with find.
func NewFlexibles(find func(cname string) *Record) *Flexibles {
	return &Flexibles{find: find, ends: map[*Record]bool{}}
}

// Check refuses a flexible array, or a record that ends with one, behind which something stands: another member or
// the next element of an array.
func (x *Flexibles) Check(rec *Record) error {
	for i := range rec.Fields {
		f := &rec.Fields[i]
		of, isArray := x.recordOf(f)
		if isArray && of != nil && x.endsFlexible(of) {
			return fmt.Errorf("%s: an array of what ends with a flexible array, whose elements have no size of their "+
				"own; use pointers to them", f.Name)
		}
		if i == len(rec.Fields)-1 || rec.Kind != Struct {
			continue
		}
		if f.Flexible() || of != nil && x.endsFlexible(of) {
			return fmt.Errorf("%s stands behind %s, a flexible array or what ends with one, which has to be the last "+
				"member", rec.Fields[i+1].Name, f.Name)
		}
	}
	return nil
}

// recordOf is the record of which a field, or an element of it, is made.
func (x *Flexibles) recordOf(f *Field) (of *Record, isArray bool) {
	if f.Record != nil {
		return f.Record, len(f.Dims) > 0
	}
	t, err := ParseType(f.Type)
	if err != nil || t.Pointers > 0 {
		return nil, false
	}
	return x.find(t.Base), len(t.Dims) > 0
}

// endsFlexible reports whether a structure's last member, or any arm of a union, is a flexible array or ends with one.
func (x *Flexibles) endsFlexible(rec *Record) bool {
	known, asked := x.ends[rec]
	if asked || len(rec.Fields) == 0 {
		return known
	}
	x.ends[rec] = false // a model may have a record that holds itself
	last := rec.Fields[len(rec.Fields)-1:]
	if rec.Kind == Union {
		last = rec.Fields
	}
	for i := range last {
		of, _ := x.recordOf(&last[i])
		if last[i].Flexible() || of != nil && x.endsFlexible(of) {
			x.ends[rec] = true
		}
	}
	return x.ends[rec]
}
