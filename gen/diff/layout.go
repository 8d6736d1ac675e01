// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// index finds the declarations of a release by C name.
type index struct {
	*model.Release
	records []*record
	byName  map[string]*record // "struct ibv_wc"
}

// record is a tagged record whose nested members are flattened.
type record struct {
	*model.Record
	header  string
	members []*member
	byPath  map[string]*member
}

// member is a member of a record that C can name. Members of unnamed structures and unions belong to the enclosing
// record.
type member struct {
	*model.Field
	path   string    // "wr.rdma.rkey"
	offset model.Per // from the start of the record, or of the named in-place record that contains the member
	scope  string    // path of that in-place record; "" for the record itself
	start  model.Per // from the start of the record
	shared bool      // member of an unnamed or in-place union
}

func newIndex(r *model.Release) *index {
	x := &index{Release: r, byName: map[string]*record{}}
	for i := range r.Headers {
		h := &r.Headers[i]
		for k := range h.Records {
			rec := &record{Record: &h.Records[k], header: h.Name, byPath: map[string]*member{}}
			rec.flatten(rec.Record, "", model.Same(0), model.Same(0), rec.Kind == model.Union)
			x.records = append(x.records, rec)
			x.byName[rec.CName()] = rec
		}
	}
	return x
}

func (r *record) flatten(in *model.Record, scope string, base, start model.Per, shared bool) {
	for i := range in.Fields {
		f := &in.Fields[i]
		union := shared || in.Kind == model.Union
		if f.Name == "" {
			r.flatten(f.Record, scope, add(base, f.Offset), add(start, f.Offset), union || f.Record.Kind == model.Union)
			continue
		}
		m := &member{Field: f, path: strings.TrimPrefix(scope+"."+f.Name, "."), offset: add(base, f.Offset),
			scope: scope, start: add(start, f.Offset), shared: union}
		r.members = append(r.members, m)
		r.byPath[m.path] = m
		if f.Record != nil {
			r.flatten(f.Record, m.path, model.Same(0), m.start, union || f.Record.Kind == model.Union)
		}
	}
}

// full returns the path, prefixed with the record's tag.
func (r *record) full(m *member) string { return r.Tag + "." + m.path }

// spelling returns the member's type without its offset.
func (m *member) spelling() string {
	switch {
	case m.Func != nil:
		return m.Func.Declare("(*)") + dims(m.Dims)
	case m.Record != nil:
		return string(m.Record.Kind) + " defined in place" + dims(m.Dims)
	case m.Bits != nil:
		return fmt.Sprintf("%s:%d at bit %v", m.Type, m.Bits.Width, m.Bits.First)
	}
	return m.Type
}

// leaf reports whether the member has bytes that no other named member covers.
func (m *member) leaf() bool { return m.Record == nil || len(m.Dims) > 0 }

// overlaps reports whether two members share a byte on a target.
func (m *member) overlaps(o *member, target string) bool {
	a, b := m.start.On(target), o.start.On(target)
	return a < b+o.Size.On(target) && b < a+m.Size.On(target)
}

func dims(all []int64) string {
	s := ""
	for _, n := range all {
		if n == model.Flexible {
			s += "[]"
		} else {
			s += fmt.Sprintf("[%d]", n)
		}
	}
	return s
}

func add(a, b model.Per) model.Per { return combine(a, b, func(x, y int64) int64 { return x + y }) }
func sub(a, b model.Per) model.Per { return combine(a, b, func(x, y int64) int64 { return x - y }) }

func combine(a, b model.Per, f func(x, y int64) int64) model.Per {
	sum := model.Same(f(a.Default, b.Default))
	for _, p := range []model.Per{a, b} {
		for t := range p.Only {
			sum.Set(t, f(a.On(t), b.On(t)))
		}
	}
	return sum
}

// every reports whether a condition holds for the default and for every target for which one of the numbers differs.
func every(a, b model.Per, holds func(x, y int64) bool) bool {
	ok := holds(a.Default, b.Default)
	for _, p := range []model.Per{a, b} {
		for t := range p.Only {
			ok = ok && holds(a.On(t), b.On(t))
		}
	}
	return ok
}

// commonTargets returns the targets of both releases.
func commonTargets(a, b *model.Release) []string {
	var all []string
	for _, t := range a.Targets {
		if slices.Contains(b.Targets, t) {
			all = append(all, t)
		}
	}
	return all
}
