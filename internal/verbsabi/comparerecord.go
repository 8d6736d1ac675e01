// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// record compares the layouts of a record. A record may grow at its end, or at its front if all offsets are counted
// from its end. Recorded releases or a comp_mask must show that it may grow.
func (c *comparer) record(key string, o, t *layout) {
	tag := o.rec.Tag
	item := func(path, fact, ours string) Item {
		if path == "" {
			return Item{Kind: RecordItem, Name: tag, Fact: fact, Want: ours}
		}
		return Item{Kind: FieldItem, Name: tag, Path: path, Fact: fact, Want: ours}
	}
	if o.rec.Kind != t.rec.Kind {
		c.add(item("", "kind", string(o.rec.Kind)), string(t.rec.Kind), "", false, "the kind of type differs")
		return
	}
	if o.align != t.align {
		c.add(item("", "alignment", fmt.Sprint(o.align)), fmt.Sprint(t.align), "", false, "the alignment differs")
	}
	step := compareLayouts(o, t)
	if step.growth == atFront && !c.hasGrown(key, atFront) {
		step.growth = differently
		step.moved = shared(o, t)
	}
	since := c.grownSince(key, o, t)
	if o.size != t.size {
		ok, why := step.growth != differently, "its size changed and members moved"
		switch {
		case step.growth == atFront:
			why = "grown at its front; offsets are counted from its end"
		case step.growth == atEnd:
			why = "grown at its end"
			if ok = c.hasGrown(key, atEnd) || extensible(o.rec); !ok {
				why += ", but no recorded release shows that it may grow"
			}
			why += c.stride(o.rec.CName())
		}
		c.add(item("", "size", fmt.Sprint(o.size)), fmt.Sprint(t.size), since, ok, why)
	}
	for _, m := range step.moved {
		c.add(item(m.path, "offset", fmt.Sprint(m.offset)), fmt.Sprint(t.byPath[m.path].offset), "", false,
			"the member moved")
	}
	for _, m := range o.members {
		if n, ok := t.byPath[m.path]; ok {
			c.member(key, item, m, n, step)
		}
	}
	for _, m := range step.gone {
		if reserved(m.path) && step.growth != differently {
			c.add(item(m.path, "declaration", "declared"), "", c.goneSince(key, m.path), true,
				"reserved bytes are now used")
			continue
		}
		c.missing(item(m.path, "declaration", "declared"), tag+"."+m.path)
	}
	for _, m := range step.added {
		c.added(item(m.path, "declaration", ""), tag+"."+m.path)
	}
}

// stride returns a warning about arrays of a record that has grown. It does not affect the verdict, because few
// programs use such arrays.
func (c *comparer) stride(name string) string {
	var places []string
	for _, of := range c.arrays {
		arrays, err := of()
		if err != nil {
			return "; " + err.Error()
		}
		places = append(places, arrays[name]...)
	}
	if places == nil {
		return ""
	}
	slices.Sort(places)
	return fmt.Sprintf("; but arrays of it have another stride: pass no more than one element in %s",
		strings.Join(slices.Compact(places), ", "))
}

// member compares a member that exists on both sides.
func (c *comparer) member(key string, item func(path, fact, ours string) Item, o, t member, step layoutStep) {
	ours, theirs, fact := spellMember(o.field), spellMember(t.field), "type"
	unused := reserved(o.path) && step.growth != differently
	if ours == theirs {
		switch {
		case o.size != t.size:
			fact, ours, theirs = "size", fmt.Sprint(o.size), fmt.Sprint(t.size)
		case unused && step.growth != atFront && o.offset != t.offset:
			fact, ours, theirs = "offset", fmt.Sprint(o.offset), fmt.Sprint(t.offset)
		default:
			return
		}
	}
	since, known := "", false
	if i, j := c.firstWith(key, o), c.firstWith(key, t); j >= 0 && step.growth != differently {
		since, known = c.past[max(i, j)].release, true
	}
	switch {
	case known:
		c.add(item(o.path, fact, ours), theirs, since, true, "as in a recorded release")
	case unused && len(step.added)+len(step.gone) > 0:
		c.add(item(o.path, fact, ours), theirs, "", true, "reserved bytes are now used")
	default:
		c.add(item(o.path, fact, ours), theirs, "", false, "the type differs")
	}
}

// firstWith returns the first recorded release that has a member of this type and size, or -1.
func (c *comparer) firstWith(key string, m member) int {
	return slices.IndexFunc(c.past, func(x *index) bool {
		l := x.records[key]
		if l == nil {
			return false
		}
		known, ok := l.byPath[m.path]
		return ok && spellMember(known.field) == spellMember(m.field) && known.size == m.size
	})
}

// reserved reports whether a member is reserved for later use.
func reserved(path string) bool {
	name := path[strings.LastIndexByte(path, '.')+1:]
	return strings.Contains(name, "reserved") || strings.Contains(name, "rsvd")
}

// growth describes how the size of a record changed.
type growth int

const (
	not         growth = iota // same size
	atEnd                     // one side has more members, after the common ones
	atFront                   // one side has more members, before the common ones
	differently               // members moved
)

// layoutStep is the difference between two layouts of a record.
type layoutStep struct {
	growth      growth
	moved       []member // common members that moved, in the first layout
	gone, added []member // outermost members only
}

func compareLayouts(o, t *layout) layoutStep {
	var s layoutStep
	s.gone, s.added = without(o, t), without(t, o)
	shift := t.size - o.size
	var still, shifted []member
	for _, m := range o.members {
		if n, ok := t.byPath[m.path]; ok {
			switch {
			case reserved(m.path): // reserved bytes may move
			case n.offset == m.offset:
				still = append(still, m)
			case n.offset-m.offset == shift:
				shifted = append(shifted, m)
			default:
				s.moved = append(s.moved, m)
			}
		}
	}
	front := func(members []member, end int64) bool {
		return !slices.ContainsFunc(members, func(m member) bool { return m.offset+m.size > end })
	}
	back := func(members []member, start int64) bool {
		return !slices.ContainsFunc(members,
			func(m member) bool { return m.offset < start && !m.arm && !reserved(m.path) })
	}
	switch {
	case len(s.moved) == 0 && len(shifted) == 0 && shift == 0:
		s.growth = not
	case len(s.moved) == 0 && len(shifted) == 0 && back(s.added, end(o)) && back(s.gone, end(t)):
		s.growth = atEnd
	case len(s.moved) == 0 && len(still) == 0 && front(s.added, shift) && front(s.gone, -shift):
		s.growth = atFront
	default:
		s.growth = differently
		s.moved = append(s.moved, shifted...)
	}
	return s
}

// shared returns the members of a that b has, too.
func shared(a, b *layout) []member {
	return slices.DeleteFunc(slices.Clone(a.members), func(m member) bool { _, ok := b.byPath[m.path]; return !ok })
}

// without returns the outermost members of a that b lacks.
func without(a, b *layout) []member {
	var all []member
	for _, m := range a.members {
		if _, ok := b.byPath[m.path]; ok {
			continue
		}
		inside := slices.ContainsFunc(all, func(outer member) bool {
			return strings.HasPrefix(m.path, outer.path+".") || strings.HasPrefix(m.path, outer.path+"[")
		})
		if !inside {
			all = append(all, m)
		}
	}
	return all
}

// end returns the end of the last member that is not reserved or padding.
func end(l *layout) int64 {
	var end int64
	for _, m := range l.members {
		if !reserved(m.path) {
			end = max(end, m.offset+m.size)
		}
	}
	return end
}

// hasGrown reports whether the record grew this way between recorded releases.
func (c *comparer) hasGrown(key string, how growth) bool {
	for i := 1; i < len(c.past); i++ {
		a, b := c.past[i-1].records[key], c.past[i].records[key]
		if a != nil && b != nil && a.size != b.size && compareLayouts(a, b).growth == how {
			return true
		}
	}
	return false
}

// grownSince returns the first recorded release in which the record has at least the larger of the two sizes.
func (c *comparer) grownSince(key string, o, t *layout) string {
	for _, x := range c.past {
		if l := x.records[key]; l != nil && l.size >= max(o.size, t.size) {
			return x.release
		}
	}
	return ""
}

// goneSince returns the first recorded release without a member that an older release has.
func (c *comparer) goneSince(key, path string) string {
	had := false
	for _, x := range c.past {
		l := x.records[key]
		if l == nil {
			continue
		}
		_, has := l.byPath[path]
		if had && !has {
			return x.release
		}
		had = had || has
	}
	return ""
}

// extensible reports whether a record has a comp_mask for its valid members, so that it may grow at its end.
func extensible(rec *model.Record) bool {
	return slices.ContainsFunc(rec.Fields, func(f model.Field) bool { return f.Name == "comp_mask" })
}

func spellMember(f *model.Field) string {
	if f.Record != nil {
		return string(f.Record.Kind) + dims(f.Dims)
	}
	s, _, err := fieldType(f, "")
	if err != nil {
		return err.Error()
	}
	if f.Bits != nil {
		s += fmt.Sprintf(":%d at bit %v", f.Bits.Width, f.Bits.First)
	}
	return s
}
