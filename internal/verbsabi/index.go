// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// index looks up the declarations of a release on one target, by C names.
type index struct {
	release string
	order   []string // every key below, each once, in the order of the headers
	records map[string]*layout
	enums   map[string]*model.Enum
	values  map[string]value // enumerators, and macros that have a value or are aliases of enumerators
	macros  map[string]*model.Macro
	funcs   map[string]*model.Func
	known   map[string]bool // all keys, and "ibv_wc.status" for members
}

// layout is a record with its members flattened.
type layout struct {
	rec     *model.Record
	size    int64
	align   int64
	members []member
	byPath  map[string]member
}

// value is an integer constant of a header.
type value struct {
	enum    string // tag, or "-"
	value   model.Int
	typ     string // of a macro
	macro   bool
	pointer bool
	bound   bool // the number of an enumeration's values, or their maximum
}

// isBound reports whether enumerator i follows the values of its enumeration, as in enum { A, B, NUM_VALUES }. It grows
// with each new value, and programs must not rely on it.
func isBound(e *model.Enum, i int) bool {
	name := e.Enumerators[i].Name
	return i > 0 && i == len(e.Enumerators)-1 && (strings.HasSuffix(name, "_MAX") || strings.Contains(name, "_NUM_")) &&
		e.Enumerators[i].Value.Uint64() == e.Enumerators[i-1].Value.Uint64()+1
}

func newIndex(r *model.Release, target string) *index {
	x := &index{
		release: r.Name, records: map[string]*layout{}, enums: map[string]*model.Enum{}, values: map[string]value{},
		macros: map[string]*model.Macro{}, funcs: map[string]*model.Func{}, known: map[string]bool{},
	}
	add := func(key string) {
		if !x.known[key] {
			x.known[key] = true
			x.order = append(x.order, key)
		}
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		for j := range h.Records {
			rec := &h.Records[j]
			l := &layout{rec: rec, size: rec.Size.On(target), align: rec.Align.On(target),
				members: members(rec, target), byPath: map[string]member{}}
			for _, m := range l.members {
				l.byPath[m.path] = m
				x.known[rec.Tag+"."+m.path] = true
			}
			x.records[rec.CName()] = l
			add(rec.CName())
		}
		for j := range h.Enums {
			e := &h.Enums[j]
			tag := "-"
			if e.Tag != "" {
				tag = e.Tag
				x.enums["enum "+tag] = e
				add("enum " + tag)
			}
			for i, n := range e.Enumerators {
				x.values[n.Name] = value{enum: tag, value: n.Value, bound: isBound(e, i)}
				add(n.Name)
			}
		}
		for j := range h.Funcs {
			x.funcs[h.Funcs[j].Name] = &h.Funcs[j]
			add(h.Funcs[j].Name)
		}
		for j := range h.FuncTypes {
			x.funcs[h.FuncTypes[j].Name] = &h.FuncTypes[j]
			add(h.FuncTypes[j].Name)
		}
	}
	for i := range r.Headers { // aliases need the enumerators of every header
		for j := range r.Headers[i].Macros {
			m := &r.Headers[i].Macros[j]
			x.macros[m.Name] = m
			if m.Value != nil {
				x.values[m.Name] = value{enum: "-", value: *m.Value, typ: m.Type, macro: true,
					pointer: strings.HasSuffix(m.Type, "*")}
			} else if v, ok := x.values[m.Target]; ok && m.Kind == model.Alias {
				x.values[m.Name] = value{enum: "-", value: v.value, macro: true}
			}
			add(m.Name)
		}
	}
	return x
}

// history holds the recorded releases, oldest first.
type history []*index

// since returns the first recorded release that has a key, and its index, or -1 if none has it. For the oldest release,
// the name is followed by "or earlier".
func (h history) since(key string) (name string, i int) {
	for i, x := range h {
		if x.known[key] {
			if i == 0 {
				return x.release + " or earlier", 0
			}
			return x.release, i
		}
	}
	return "", -1
}
