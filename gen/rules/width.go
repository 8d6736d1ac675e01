// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rows"
)

// An enumeration has C's size in Go if C stores values of that enumeration type, in a member or behind a pointer.
// Members that C declares as integers have their own size. If rows state that such a member holds an enumeration, the
// Go type has the size of the member. Arguments passed by value are in registers, where size does not matter. For an
// enumeration with members of several sizes, there is a Go type for each size, and the constants are untyped, so that
// they can be assigned to all of them.

// measure records the sizes of the members that hold each enumeration.
func (r *resolver) measure() {
	r.sizes = map[string][]int64{}
	note := func(enum string, size int64) {
		if !slices.Contains(r.sizes[enum], size) {
			r.sizes[enum] = append(r.sizes[enum], size)
		}
	}
	spelled := func(c string, behindPointer bool) {
		t, err := model.ParseType(c)
		if err != nil {
			return
		}
		kind, tag := t.Tag()
		if e, ok := r.enumOf[tag]; ok && kind == "enum" && (t.Pointers > 0 || !behindPointer) {
			note(tag, e.Size)
		}
	}
	var proto func(p *model.Proto)
	proto = func(p *model.Proto) {
		spelled(p.Result, true)
		for _, a := range p.Params {
			if a.Func != nil {
				proto(a.Func)
			} else {
				spelled(a.Type, true)
			}
		}
	}
	var record func(rec *model.Record, path string)
	record = func(rec *model.Record, path string) {
		for i := range rec.Fields {
			f := &rec.Fields[i]
			at := path
			if f.Name != "" {
				at += "." + f.Name
			}
			switch {
			case f.Record != nil:
				record(f.Record, at)
			case f.Func != nil:
				proto(f.Func)
			case f.Bits != nil: // of any size
			default:
				spelled(f.Type, false)
				if row := r.exceptions.Lookup(string(Holds), at); row != nil && alone(f) {
					note(row.Columns[2], f.Size.Default)
				}
			}
		}
	}
	for i := range r.in.Release.Headers {
		h := &r.in.Release.Headers[i]
		for j := range h.Records {
			record(&h.Records[j], h.Records[j].Tag)
		}
		for _, f := range slices.Concat(h.Funcs, h.FuncTypes) {
			proto(&f.Proto)
		}
	}
}

// alone reports whether a member is a single value, not an array or a pointer.
func alone(f *model.Field) bool {
	t, err := model.ParseType(f.Type)
	return err == nil && len(t.Dims) == 0 && t.Pointers == 0
}

// ownEnum records the Go types of an enumeration. key is its tag, or its name in rows. size is its size in C, or 0 if C
// does not store it. The first of the returned types declares the constants.
func (r *resolver) ownEnum(key, name string, size int64) []Enum {
	sizes := slices.Sorted(slices.Values(r.sizes[key]))
	main := max(size, 4)
	if len(sizes) > 0 && !slices.Contains(sizes, main) {
		main = sizes[len(sizes)-1]
	}
	r.own("enum "+key, name)
	r.sized(key, main, goName{Name: name})
	all := []Enum{{Go: name, Size: main}}
	if len(sizes) < 2 {
		return all
	}
	if r.exceptions.find(Widths, key) == nil {
		r.fail(key, "members of %v bytes hold it; add a widths row to gen/rules/exceptions.txt, which makes "+
			"its constants untyped", sizes)
	}
	all[0].Untyped = true
	for _, n := range sizes {
		if n != main {
			other := fmt.Sprintf("%s%d", name, 8*n)
			r.claim(other, "enum "+key)
			r.sized(key, n, goName{Name: other})
			all = append(all, Enum{Go: other, Size: n, Of: name})
		}
	}
	return all
}

// sized records the Go type for members of a size that hold an enumeration.
func (r *resolver) sized(key string, size int64, name goName) {
	if r.plan.sized[key] == nil {
		r.plan.sized[key] = map[int64]goName{}
	}
	r.plan.sized[key][size] = name
}

// planEnum plans the Go types of an enumeration. like holds their common properties.
func (r *resolver) planEnum(types []Enum, like Enum, names []Const) {
	for _, e := range types {
		e.Doc, e.Tag, e.Signed, e.Flags, e.Errors = like.Doc, like.Tag, like.Signed, like.Flags, like.Errors
		fits := model.Enum{Size: e.Size, Signed: e.Signed}
		for _, n := range names {
			switch {
			case e.Of == "" && !fits.Holds(n.Value):
				r.fail(n.C, "its value %s does not fit members of %d bytes", n.Value, e.Size)
			case e.Of == "":
				e.Names = append(e.Names, n)
			case fits.Holds(n.Value):
				e.Shown = append(e.Shown, n)
			}
		}
		r.plan.Enums = append(r.plan.Enums, e)
	}
}

// given plans the enumerations that no header declares. Their values come from rows, and headers of this package
// contain the members that hold them.
func (r *resolver) given() {
	var order []string
	values := map[string][]*rows.Row{}
	for _, row := range r.exceptions.Rows {
		if name, _, _ := strings.Cut(row.Columns[2], "="); Action(row.Columns[1]) == Given {
			if values[name] == nil {
				order = append(order, name)
			}
			values[name] = append(values[name], row)
		}
	}
	for _, name := range order {
		h, rec := r.holder(name)
		if h == nil {
			continue
		}
		r.claim(name, name)
		doc := r.doc(values[name][0].Columns[3], h, rec.Man, r.since.of(rec.CName()))
		doc.Header = ""
		var names []Const
		for _, row := range values[name] {
			e := r.exceptions.find(Given, row.Columns[0])
			_, number, _ := strings.Cut(e.Argument, "=")
			one := Const{Doc: doc, C: e.C, Go: r.pkg.ConstName(e.C), Enum: "-", Value: model.Int(number)}
			r.claim(one.Go, e.C)
			names = append(names, one)
		}
		types := r.ownEnum(name, name, 0)
		for i := range types {
			types[i].Given = true
		}
		r.planEnum(types, Enum{Doc: doc}, names)
	}
}

// holder returns the first record of this package's headers with a member that holds an enumeration, or nil.
func (r *resolver) holder(enum string) (*model.Header, *model.Record) {
	for _, row := range r.exceptions.Rows {
		e := exceptionOf(row)
		if e.Action != Holds || e.Argument != enum {
			continue
		}
		tag, _, _ := strings.Cut(e.C, ".")
		for _, h := range r.headers {
			for i := range h.Records {
				if h.Records[i].Tag == tag {
					return h, &h.Records[i]
				}
			}
		}
	}
	return nil, nil
}
