// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"

	"github.com/goverbs/goverbs/gen/model"
)

// records compares structures, unions and opaque types.
func (c *comparison) records() {
	var removed, added []*record
	for _, o := range c.old.records {
		if c.new.byName[o.CName()] == nil {
			removed = append(removed, o)
		}
	}
	for _, n := range c.new.records {
		if c.old.byName[n.CName()] == nil {
			added = append(added, n)
		}
	}
	pairs := findRenames(removed, added, sameBody)
	for _, n := range c.new.records {
		switch o := c.old.byName[n.CName()]; {
		case o != nil:
			c.record(o, n)
		case pairs[n] != nil:
			c.add(Entry{n.header, Record, n.CName(), Renamed, pairs[n].CName(), n.CName(), Breaking,
				"the same members under another name: programs that name it no longer compile"})
		default:
			c.add(Entry{n.header, Record, n.CName(), Added, "", size(n.Record), Additive, "new"})
		}
	}
	for _, o := range removed {
		if !paired(pairs, o) {
			c.add(Entry{o.header, Record, o.CName(), Removed, size(o.Record), "", Breaking, "gone"})
		}
	}
}

func size(r *model.Record) string {
	if r.Kind == model.Incomplete {
		return "opaque"
	}
	return r.Size.String() + " bytes"
}

// sameBody reports whether two records have the same members at the same offsets. Records without members are never the
// same.
func sameBody(a, b *record) bool {
	return len(a.members) > 1 && a.Kind == b.Kind && a.Size.Equal(b.Size) &&
		slices.EqualFunc(a.members, b.members, func(x, y *member) bool {
			return x.path == y.path && x.start.Equal(y.start) && x.Size.Equal(y.Size) && x.spelling() == y.spelling()
		})
}

// findRenames pairs each added declaration with the removed one that matches it. A pair counts only if neither matches
// another declaration.
func findRenames[T comparable](removed, added []T, match func(a, b T) bool) map[T]T {
	pairs := map[T]T{}
	for _, n := range added {
		var candidates []T
		for _, o := range removed {
			if match(o, n) {
				candidates = append(candidates, o)
			}
		}
		if len(candidates) != 1 {
			continue
		}
		matches := 0
		for _, other := range added {
			if match(candidates[0], other) {
				matches++
			}
		}
		if matches == 1 {
			pairs[n] = candidates[0]
		}
	}
	return pairs
}

func paired[T comparable](pairs map[T]T, old T) bool {
	for _, o := range pairs {
		if o == old {
			return true
		}
	}
	return false
}

// record compares a type of both releases.
func (c *comparison) record(o, n *record) {
	name := n.CName()
	if o.header != n.header {
		c.add(Entry{n.header, Record, name, Moved, o.header, n.header, None, "declared in another header"})
	}
	if o.Kind != n.Kind {
		v, why := Breaking, "the kind of type differs"
		if o.Kind == model.Incomplete {
			v, why = Additive, "its members are declared now"
		}
		c.add(Entry{n.header, Record, name, Changed, string(o.Kind), string(n.Kind), v, why})
		return
	}
	s, last := shapeOf(o, n, c.j.reserved)
	if !o.Size.Equal(n.Size) {
		v, why := c.sizeVerdict(name, s, last)
		c.add(Entry{n.header, Record, name, Resized, o.Size.String(), n.Size.String(), v, why})
	}
	if !o.Align.Equal(n.Align) {
		v, why := c.judge.growth(name, false, c.j.reserved)
		c.add(Entry{n.header, Record, name, Changed, "alignment " + o.Align.String(), "alignment " + n.Align.String(),
			v, why})
	}
	c.members(o, n, s, last)
}

func (c *comparison) sizeVerdict(name string, s shape, last *member) (Verdict, string) {
	switch s {
	case tail:
		v, why := c.judge.growth(name, false, c.j.reserved)
		return v, "grown at its tail; " + why
	case front:
		if guard := c.judge.uses[name].guard; guard != "" {
			return Additive, fmt.Sprintf("grown at its front; every member is as far from %s as before, and %s",
				last.path, guard)
		}
		return Breaking, fmt.Sprintf("grown at its front; its extent before %s is unknown", last.path)
	}
	if c.old.byName[name].Size.Default > c.new.byName[name].Size.Default {
		return Breaking, "shrunk"
	}
	return Breaking, "its members have moved"
}

// members compares the members of a type.
func (c *comparison) members(o, n *record, s shape, last *member) {
	shift := model.Same(0)
	if s == front {
		shift = sub(n.byPath[last.path].offset, last.offset)
	}
	var removed, added []*member
	for _, m := range o.members {
		if n.byPath[m.path] == nil && o.holderIn(m, n) {
			removed = append(removed, m)
		}
	}
	for _, m := range n.members {
		if o.byPath[m.path] == nil && n.holderIn(m, o) {
			added = append(added, m)
		}
	}
	pairs := findRenames(removed, added, func(a, b *member) bool {
		return a.scope == b.scope && a.offset.Equal(b.offset) && a.Size.Equal(b.Size) && a.spelling() == b.spelling() &&
			!c.j.reserved(a.path) && !c.j.reserved(b.path)
	})
	for _, m := range n.members {
		old := o.byPath[m.path]
		switch {
		case old != nil:
			if m.scope != "" {
				shift = model.Same(0)
			}
			c.member(o, n, old, m, shift, s == front && m.scope == "")
		case pairs[m] != nil:
			c.add(Entry{n.header, kindOf(m), n.full(m), Renamed, o.full(pairs[m]), n.full(m), Breaking,
				"the same bytes under another name: programs that name it no longer compile"})
		case slices.Contains(added, m):
			v, why := c.newMember(o, n, m, s)
			c.add(Entry{n.header, kindOf(m), n.full(m), Added, "", at(m), v, why})
		}
	}
	for _, m := range removed {
		if paired(pairs, m) {
			continue
		}
		v, why := Breaking, "gone"
		if c.j.reserved(m.path) {
			v, why = Additive, "uses reserved bytes"
		}
		c.add(Entry{n.header, kindOf(m), o.full(m), Removed, at(m), "", v, why})
	}
}

// holderIn reports whether the other record also has the nested record that contains this member, so that only the
// member differs.
func (r *record) holderIn(m *member, other *record) bool {
	return m.scope == "" || other.byPath[m.scope] != nil
}

func kindOf(m *member) Kind {
	if m.Func != nil {
		return Slot
	}
	return Member
}

// at returns a member's type and offset.
func at(m *member) string {
	return fmt.Sprintf("%s at %s", m.spelling(), m.offset)
}

// newMember judges an added member by the bytes that it uses.
func (c *comparison) newMember(o, n *record, m *member, s shape) (Verdict, string) {
	if s == front && m.scope == "" {
		return Additive, "before all existing members"
	}
	for _, old := range o.members {
		if !old.leaf() || !c.onAny(func(t string) bool { return m.overlaps(old, t) }) {
			continue
		}
		now := n.byPath[old.path]
		switch {
		case c.j.reserved(old.path):
			return Additive, "uses bytes of " + old.path + ", which were reserved"
		case now == nil:
			return Breaking, "uses bytes of " + old.path + ", which was removed"
		case now.start.Equal(old.start):
			if !m.shared {
				return Breaking, "uses bytes of " + old.path
			}
			if s == tail && every(o.Size, add(m.start, m.Size), func(size, end int64) bool { return end > size }) {
				return c.tailVerdict(o, "shares bytes with "+old.path+" and extends past them;  ")
			}
			return Additive, "shares bytes with " + old.path
		}
	}
	switch s {
	case tail:
		if every(o.Size, m.start, func(size, start int64) bool { return start >= size }) {
			return c.tailVerdict(o, "at the tail; ")
		}
		fallthrough
	case inside:
		v, why := c.judge.growth(o.CName(), true, c.j.reserved)
		return v, "in former padding;  " + why
	}
	return Breaking, "other members moved"
}

func (c *comparison) tailVerdict(o *record, how string) (Verdict, string) {
	v, why := c.judge.growth(o.CName(), false, c.j.reserved)
	return v, how + why
}

func (c *comparison) onAny(holds func(target string) bool) bool {
	return slices.ContainsFunc(c.targets, holds)
}

// member compares a member of both releases. In a record that grows at its front, offsets are relative to the anchor.
func (c *comparison) member(o, n *record, old, m *member, shift model.Per, anchored bool) {
	reserved := c.j.reserved(m.path)
	entry := func(change Change, was, is string, v Verdict, why string) {
		if reserved {
			v, why = Additive, "reserved bytes"
		}
		c.add(Entry{n.header, kindOf(m), n.full(m), change, was, is, v, why})
	}
	if want := add(old.offset, shift); !m.offset.Equal(want) {
		entry(Moved, old.offset.String(), m.offset.String(), Breaking, "existing programs use the old offset")
	}
	if !old.Size.Equal(m.Size) {
		v, why := Breaking, "existing programs use the old size"
		if t, _ := model.ParseType(m.Type); len(t.Dims)+len(m.Dims) > 0 {
			why = "an array: its length or stride changes"
		} else if s, _ := shapeOf(o, n, c.j.reserved); s == same || s == inside || s == tail && n.isLast(m) {
			v, why = Additive, "no other member moves"
			if s == tail {
				v, why = c.judge.growth(o.CName(), false, c.j.reserved)
			}
		}
		entry(Resized, old.Size.String(), m.Size.String(), v, why)
	}
	was, is := old.spelling(), m.spelling()
	if was == is {
		return
	}
	v, why := Breaking, "the type differs"
	if old.Func != nil && m.Func != nil {
		v, why = protoVerdict(old.Func, m.Func)
		if v == None {
			entry(Renamed, was, is, v, why)
			return
		}
	} else if withoutConst(was) == withoutConst(is) {
		v, why = Additive, "only const differs"
	}
	entry(Retyped, was, is, v, why)
}

// isLast reports whether no member starts after this one.
func (r *record) isLast(m *member) bool {
	return !slices.ContainsFunc(r.members,
		func(o *member) bool { return o.start.Default > m.start.Default && o.scope != m.path })
}
