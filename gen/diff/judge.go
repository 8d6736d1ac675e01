// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"

	"github.com/goverbs/goverbs/gen/model"
)

// judge decides how a change of a record's layout affects programs built for the old release.
type judge struct {
	old, new *index
	uses     map[string]*use // uses in the old release, for which existing programs are built
}

// shape describes how a record's layout changed.
type shape int

const (
	same   shape = iota // same size; no member moved
	inside              // same size; no member moved, members added
	tail                // larger; no member moved
	front               // larger; every member keeps its distance from the last one, an embedded record
	moved               // anything else
)

// shapeOf compares the layouts of a record in two releases. Reserved members may change.
func shapeOf(old, new *record, reserved func(string) bool) (shape, *member) {
	if old.Kind != new.Kind {
		return moved, nil
	}
	held := func(shift model.Per) bool {
		for _, m := range old.members {
			n := new.byPath[m.path]
			if m.scope != "" {
				continue // moves together with the member that contains it
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
		return moved, nil
	}
	last := old.members[len(old.members)-1]
	t, err := model.ParseType(last.Type)
	if kind, _ := t.Tag(); err != nil || kind != "struct" || t.Pointers > 0 || len(t.Dims) > 0 ||
		new.byPath[last.path] == nil {
		return moved, nil
	}
	if held(sub(new.byPath[last.path].offset, last.offset)) {
		return front, last
	}
	return moved, nil
}

// growth judges a record that became larger, or that uses former padding. extra means that its size did not change.
func (d *judge) growth(name string, extra bool, reserved func(string) bool) (Verdict, string) {
	return d.grown(name, extra, reserved, map[string]bool{})
}

func (d *judge) grown(name string, extra bool, reserved func(string) bool, seen map[string]bool) (Verdict, string) {
	u := d.uses[name]
	if u == nil || seen[name] {
		return Breaking, "the headers do not show which side allocates it"
	}
	seen[name] = true
	held := ""
	for _, p := range u.byValue {
		if extra {
			break // the bytes did not change
		}
		if p.count != "" {
			return Breaking, fmt.Sprintf("%s is an array of it: the stride changes", p.name)
		}
		outer, now := d.old.byName[p.record], d.new.byName[p.record]
		if now == nil {
			continue
		}
		switch s, _ := shapeOf(outer, now, reserved); {
		case s == moved || s == front && now.byPath[p.path] == nil:
			return Breaking, fmt.Sprintf("%s embeds it: the members that follow move", p.name)
		case s == tail && !now.Size.Equal(outer.Size):
			if v, why := d.grown(p.record, false, reserved, seen); v == Breaking {
				return v, fmt.Sprintf("%s embeds it; for %s, %s", p.name, p.record, why)
			}
			held = fmt.Sprintf("%s embeds it at the end and grows with it", p.name)
		default:
			held = fmt.Sprintf("%s embeds it in bytes that do not grow", p.name)
		}
	}
	sized := ""
	open := ""
	for _, p := range u.passed {
		switch {
		case p.size != "":
			sized = fmt.Sprintf("%s receives its size in %s", p.name, p.size)
		case p.count != "" && !extra:
			return Breaking, fmt.Sprintf("%s points to an array of %s elements of it: the stride changes", p.name,
				p.count)
		case open == "":
			open = p.name
		}
	}
	switch {
	case u.returned != "" && extra:
		return Additive, "only the library allocates it (" + u.returned + "); an older one does not set these bytes"
	case u.returned != "":
		return Additive, "only the library allocates it (" + u.returned + "); an older one allocates fewer bytes"
	case u.guard != "":
		return Additive, u.guard
	case open != "" && extra:
		return Breaking, fmt.Sprintf("existing programs do not set these bytes for %s, and the library cannot "+
			"detect that", open)
	case open != "":
		return Breaking, fmt.Sprintf("programs allocate it for %s, and the library cannot determine its size",
			open)
	case sized != "":
		return Additive, sized
	case held != "":
		return Additive, held
	}
	return Breaking, "the headers do not show which side allocates it"
}
