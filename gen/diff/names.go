// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// named is an enumerator or a macro with a value. Both name numbers in C, and one may replace the other in a release.
type named struct {
	name, header string
	value        model.Int
	enum         string // tag of the enum; "" for an untagged one
	macro        bool
	ctype        string // C type of a macro
}

func (n *named) kind() Kind {
	if n.macro {
		return Constant
	}
	return Enumerator
}

// numbers lists a release's named numbers in header order, and indexes them by name. A macro with the name of an
// enumerator counts as the enumerator.
func numbers(r *model.Release) ([]*named, map[string]*named) {
	var all []*named
	by := map[string]*named{}
	put := func(n *named) {
		if by[n.name] == nil {
			by[n.name] = n
			all = append(all, n)
		}
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		for _, e := range h.Enums {
			for _, n := range e.Enumerators {
				put(&named{name: n.Name, header: h.Name, value: n.Value, enum: e.Tag})
			}
		}
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		for _, m := range h.Macros {
			if m.Kind == model.Constant {
				put(&named{name: m.Name, header: h.Name, value: *m.Value, macro: true, ctype: m.Type})
			}
		}
	}
	return all, by
}

func (c *comparison) constants() {
	oldAll, oldByName := numbers(c.old.Release)
	newAll, newByName := numbers(c.new.Release)
	var removed, added []*named
	for _, o := range oldAll {
		if newByName[o.name] == nil {
			removed = append(removed, o)
		}
	}
	for _, n := range newAll {
		if oldByName[n.name] == nil {
			added = append(added, n)
		}
	}
	// different macros may have the same value by coincidence
	pairs := findRenames(removed, added, func(a, b *named) bool {
		return !a.macro && !b.macro && a.enum != "" && a.enum == b.enum && a.value == b.value && unique(newAll, b)
	})
	for _, n := range newAll {
		switch o := oldByName[n.name]; {
		case o != nil:
			c.number(o, n)
		case pairs[n] != nil:
			c.add(Entry{n.header, Enumerator, n.name, Renamed, pairs[n].name, n.name, Breaking,
				fmt.Sprintf("%s is still a value of enum %s under another name: programs that name it no longer "+
					"compile", n.value, n.enum)})
		default:
			c.add(Entry{n.header, n.kind(), n.name, Added, "", string(n.value), Additive,
				strings.TrimSpace("new " + inEnum(n))})
		}
	}
	for _, o := range removed {
		if !paired(pairs, o) {
			c.add(Entry{o.header, o.kind(), o.name, Removed, string(o.value), "", Breaking, "gone"})
		}
	}
}

func inEnum(n *named) string {
	if n.enum == "" {
		return ""
	}
	return "in enum " + n.enum
}

// unique reports whether no other name of the same enum has the value.
func unique(all []*named, one *named) bool {
	for _, n := range all {
		if n != one && n.enum == one.enum && !n.macro && n.value == one.value {
			return false
		}
	}
	return true
}

func (c *comparison) number(o, n *named) {
	if o.value != n.value {
		c.add(Entry{n.header, n.kind(), n.name, Revalued, string(o.value), string(n.value), Breaking,
			"existing programs use the old value"})
	}
	same := "the same number"
	if o.value != n.value {
		same = "only its declaration"
	}
	switch {
	case o.macro != n.macro:
		c.add(Entry{n.header, n.kind(), n.name, Changed, string(o.kind()), string(n.kind()), None, same})
	case o.enum != n.enum:
		c.add(Entry{n.header, n.kind(), n.name, Retyped, enumName(o.enum), enumName(n.enum), None, same})
	case o.ctype != n.ctype:
		c.add(Entry{n.header, n.kind(), n.name, Retyped, o.ctype, n.ctype, None, same})
	}
}

func enumName(tag string) string {
	if tag == "" {
		return "untagged enum"
	}
	return "enum " + tag
}

// enums compares the enumerations themselves; constants compares their enumerators.
func (c *comparison) enums() {
	type placed struct {
		*model.Enum
		header string
	}
	list := func(r *model.Release) (all []placed, by map[string]placed) {
		by = map[string]placed{}
		for i := range r.Headers {
			for k := range r.Headers[i].Enums {
				if e := (placed{&r.Headers[i].Enums[k], r.Headers[i].Name}); e.Tag != "" {
					all = append(all, e)
					by[e.Tag] = e
				}
			}
		}
		return all, by
	}
	oldAll, oldByName := list(c.old.Release)
	newAll, newByName := list(c.new.Release)
	for _, n := range newAll {
		name := "enum " + n.Tag
		o, had := oldByName[n.Tag]
		if !had {
			c.add(Entry{n.header, Enum, name, Added, "", counted(len(n.Enumerators), "name"), Additive, "new"})
			continue
		}
		if o.header != n.header {
			c.add(Entry{n.header, Enum, name, Moved, o.header, n.header, None, "declared in another header"})
		}
		if o.Size != n.Size {
			c.add(Entry{n.header, Enum, name, Resized, fmt.Sprint(o.Size), fmt.Sprint(n.Size), Breaking,
				"existing programs use the old size"})
		}
		if o.Signed != n.Signed {
			c.add(Entry{n.header, Enum, name, Retyped, signed(o.Signed), signed(n.Signed), Breaking,
				"comparisons give other results"})
		}
	}
	for _, o := range oldAll {
		if _, has := newByName[o.Tag]; !has {
			c.add(Entry{o.header, Enum, "enum " + o.Tag, Removed, counted(len(o.Enumerators), "name"), "", Breaking,
				"gone"})
		}
	}
}

func signed(s bool) string {
	if s {
		return "signed"
	}
	return "unsigned"
}

// macros compares macros without a value. A macro may replace a function of the same name.
func (c *comparison) macros() {
	type placed struct{ name, header, text string }
	list := func(r *model.Release) (all []placed, by map[string]placed) {
		by = map[string]placed{}
		for i := range r.Headers {
			for _, m := range r.Headers[i].Macros {
				if m.Kind == model.Constant {
					continue
				}
				text := string(m.Kind)
				switch m.Kind {
				case model.Alias:
					text = "another name for " + m.Target
				case model.FuncLike:
					text = "(" + strings.Join(m.Params, ", ") + ")"
				}
				p := placed{m.Name, r.Headers[i].Name, text}
				if _, twice := by[m.Name]; !twice {
					all = append(all, p)
					by[m.Name] = p
				}
			}
		}
		return all, by
	}
	oldAll, oldByName := list(c.old.Release)
	newAll, newByName := list(c.new.Release)
	_, constants := numbers(c.new.Release)
	for _, n := range newAll {
		o, had := oldByName[n.name]
		switch {
		case !had:
			c.add(Entry{n.header, Macro, n.name, Added, "", n.text, Additive, "new"})
		case o.text != n.text && sameCount(o.text, n.text):
			c.add(Entry{n.header, Macro, n.name, Renamed, o.text, n.text, None, "parameter names have no meaning"})
		case o.text != n.text:
			c.add(Entry{n.header, Macro, n.name, Changed, o.text, n.text, Breaking,
				"programs that use it expect the old text"})
		}
	}
	for _, o := range oldAll {
		if _, has := newByName[o.name]; has {
			continue
		}
		v, why := Breaking, "gone"
		if constants[o.name] != nil {
			v, why = None, "has a value now"
		}
		c.add(Entry{o.header, Macro, o.name, Removed, o.text, "", v, why})
	}
}

// sameCount reports whether two parameter lists have the same length.
func sameCount(a, b string) bool {
	return strings.HasPrefix(a, "(") && strings.HasPrefix(b, "(") && strings.Count(a, ",") == strings.Count(b, ",") &&
		(a == "()") == (b == "()")
}

// counted formats a count: "1 name", "2 names".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
