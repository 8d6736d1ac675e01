// SPDX-License-Identifier: BSD-2-Clause

package model

import "fmt"

// Flexible reports whether the field is an array without a length: [], or [0] in older headers.
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

// ending describes the last member of a record. C allows members after a record that ends with an array of length 0,
// whose elements the header defines.
type ending int

const (
	fixed ending = iota
	zeroLength
	flexible
)

// Flexibles finds records that end with a flexible array.
type Flexibles struct {
	find func(cname string) *Record // nil if there is none
	ends map[*Record]ending         // a cache
}

// NewFlexibles returns Flexibles; find looks up records by C name.
func NewFlexibles(find func(cname string) *Record) *Flexibles {
	return &Flexibles{find: find, ends: map[*Record]ending{}}
}

// Check rejects a flexible array, or a record that ends with one, that is followed by another member or element.
func (x *Flexibles) Check(rec *Record) error {
	for i := range rec.Fields {
		f := &rec.Fields[i]
		of, isArray := x.recordOf(f)
		if isArray && of != nil && x.ending(of) == flexible {
			return fmt.Errorf("%s: the elements of this array end with a flexible array, so they have no fixed size; "+
				"use pointers to them", f.Name)
		}
		if i == len(rec.Fields)-1 || rec.Kind != Struct {
			continue
		}
		if f.Flexible() || of != nil && x.ending(of) == flexible {
			return fmt.Errorf("%s follows %s, which is or ends with a flexible array and must be the last "+
				"member", rec.Fields[i+1].Name, f.Name)
		}
	}
	return nil
}

// recordOf returns the record type of a field or of its elements.
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

// ending returns the ending of a structure's last member, or of every union member.
func (x *Flexibles) ending(rec *Record) ending {
	known, asked := x.ends[rec]
	if asked || len(rec.Fields) == 0 {
		return known
	}
	x.ends[rec] = fixed // a record of a model may contain itself
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
