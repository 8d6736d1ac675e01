// SPDX-License-Identifier: BSD-2-Clause

package model

import "fmt"

// Flexible reports whether the field is an array without a length of its own: [], or [0] as it was written before.
func (f *Field) Flexible() bool {
	dims := f.dims()
	return len(dims) > 0 && dims[0] <= 0
}

func (f *Field) dims() []int64 {
	if t, err := ParseType(f.Type); err == nil {
		return t.Dims
	}
	return f.Dims
}

// ending is what a record ends with. Behind one that ends with an array of length 0, C lets something stand; what the
// array's elements are then, the header's authors know.
type ending int

const (
	fixed ending = iota
	zeroLength
	flexible
)

// Flexibles knows which records end with a flexible array.
type Flexibles struct {
	find func(cname string) *Record // nil if there is none
	ends map[*Record]ending         // as far as it was asked
}

// NewFlexibles looks records up by their C names with find.
func NewFlexibles(find func(cname string) *Record) *Flexibles {
	return &Flexibles{find: find, ends: map[*Record]ending{}}
}

// Check refuses a flexible array, or a record that ends with one, behind which something stands: another member or
// the next element of an array.
func (x *Flexibles) Check(rec *Record) error {
	for i := range rec.Fields {
		f := &rec.Fields[i]
		of, isArray := x.recordOf(f)
		if isArray && of != nil && x.ending(of) == flexible {
			return fmt.Errorf("%s: an array of what ends with a flexible array, whose elements have no size of their "+
				"own; use pointers to them", f.Name)
		}
		if i == len(rec.Fields)-1 || rec.Kind != Struct {
			continue
		}
		if f.Flexible() || of != nil && x.ending(of) == flexible {
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

// ending looks at a structure's last member, or at every arm of a union.
func (x *Flexibles) ending(rec *Record) ending {
	known, asked := x.ends[rec]
	if asked || len(rec.Fields) == 0 {
		return known
	}
	x.ends[rec] = fixed // a model may have a record that holds itself
	last := rec.Fields[len(rec.Fields)-1:]
	if rec.Kind == Union {
		last = rec.Fields
	}
	found := fixed
	for i := range last {
		f := &last[i]
		switch of, _ := x.recordOf(f); {
		case f.Flexible() && f.dims()[0] == 0:
			found = max(found, zeroLength)
		case f.Flexible():
			found = flexible
		case of != nil:
			found = max(found, x.ending(of))
		}
	}
	x.ends[rec] = found
	return found
}
