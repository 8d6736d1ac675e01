// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"

	"github.com/goverbs/goverbs/gen/model"
)

// judge decides how a change of a record's layout affects programs built against the old release.
type judge struct {
	old, new *index
	uses     map[string]*use // in the old release: that is what such programs do
}

// shape describes how a record's layout changed.
type shape int

const (
	same     shape = iota // same size, every member where it was
	inside                // same size, every member where it was, and more members
	tail                  // larger; every member where it was
	front                 // larger; every member as far from the last one as before, which is a record by value
	shuffled              // anything else
)

// shapeOf compares the layouts of a record in two releases. Reserved members may change.
func shapeOf(old, new *record, reserved func(string) bool) (shape, *member) {
	if old.Kind != new.Kind {
		return shuffled, nil
	}
	held := func(shift model.Per) bool {
		for _, m := range old.members {
			n := new.byPath[m.path]
			if m.scope != "" {
				continue // moves with the one that holds it
			}
			if n == nil && !reserved(m.path) || n != nil && !reserved(m.path) && !n.offset.Equal(add(m.offset, shift)) {
				return false
			}
		}
		return true
	}
	grown := every(old.Size, new.Size, func(o, n int64) bool { return n >= o })
	switch {
	case held(model.Same(0)) && old.Size.Equal(new.Size):
		if len(new.members) > len(old.members) {
			return inside, nil
		}
		return same, nil
	case held(model.Same(0)) && grown:
		return tail, nil
	case len(old.members) == 0 || !grown:
		return shuffled, nil
	}
	last := old.members[len(old.members)-1]
	t, err := model.ParseType(last.Type)
	if kind, _ := t.Tag(); err != nil || kind != "struct" || t.Pointers > 0 || len(t.Dims) > 0 ||
		new.byPath[last.path] == nil {
		return shuffled, nil
	}
	if held(sub(new.byPath[last.path].offset, last.offset)) {
		return front, last
	}
	return shuffled, nil
}

// growth judges a record that became larger, or that uses former padding. extra means that it did not grow.
func (d *judge) growth(name string, extra bool, reserved func(string) bool) (Verdict, string) {
	return d.grown(name, extra, reserved, map[string]bool{})
}

func (d *judge) grown(name string, extra bool, reserved func(string) bool, seen map[string]bool) (Verdict, string) {
	u := d.uses[name]
	if u == nil || seen[name] {
		return Breaking, "nothing in the headers shows who allocates it"
	}
	seen[name] = true
	held := ""
	for _, p := range u.byValue {
		if extra {
			break // its bytes are the same
		}
		if p.count != "" {
			return Breaking, fmt.Sprintf("%s is an array of it: the stride changes", p.name)
		}
		outer, now := d.old.byName[p.record], d.new.byName[p.record]
		if now == nil {
			continue
		}
		switch s, _ := shapeOf(outer, now, reserved); {
		case s == shuffled || s == front && now.byPath[p.path] == nil:
			return Breaking, fmt.Sprintf("%s holds it by value: what follows moves", p.name)
		case s == tail && !now.Size.Equal(outer.Size):
			if v, why := d.grown(p.record, false, reserved, seen); v == Breaking {
				return v, fmt.Sprintf("%s holds it by value, and of %s %s", p.name, p.record, why)
			}
			held = fmt.Sprintf("%s holds it by value at the end and grows with it", p.name)
		default:
			held = fmt.Sprintf("%s holds it by value in bytes that do not grow", p.name)
		}
	}
	told := ""
	open := ""
	for _, p := range u.passed {
		switch {
		case p.size != "":
			told = fmt.Sprintf("%s has its size in %s", p.name, p.size)
		case p.count != "" && !extra:
			return Breaking, fmt.Sprintf("%s points to an array of %s elements of it: the stride changes", p.name,
				p.count)
		case open == "":
			open = p.name
		}
	}
	switch {
	case u.handed != "" && extra:
		return Additive, "only the library allocates it (" + u.handed + "); an older one leaves these bytes as they are"
	case u.handed != "":
		return Additive, "only the library allocates it (" + u.handed + "); an older one's is shorter"
	case u.guard != "":
		return Additive, u.guard
	case open != "" && extra:
		return Breaking, fmt.Sprintf("older programs leave these bytes of %s as they are, and nothing tells the "+
			"library", open)
	case open != "":
		return Breaking, fmt.Sprintf("programs allocate it for %s, and nothing tells the library how large theirs is",
			open)
	case told != "":
		return Additive, told
	case held != "":
		return Additive, held
	}
	return Breaking, "nothing in the headers shows who allocates it"
}
