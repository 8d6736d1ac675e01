// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

type function struct {
	*model.Func
	header string
}

func functions(r *model.Release) (all []function, by map[string]function) {
	by = map[string]function{}
	for i := range r.Headers {
		for k := range r.Headers[i].Funcs {
			f := function{&r.Headers[i].Funcs[k], r.Headers[i].Name}
			all = append(all, f)
			by[f.Name] = f
		}
	}
	return all, by
}

func (c *comparison) functions() {
	was, before := functions(c.old.Release)
	is, now := functions(c.new.Release)
	macro := map[string]bool{}
	for _, h := range c.new.Headers {
		for _, m := range h.Macros {
			macro[m.Name] = true
		}
	}
	for _, n := range is {
		o, had := before[n.Name]
		if !had {
			c.add(Entry{n.header, Function, n.Name, Added, "", linkage(n) + n.Declare(n.Name), Additive, "new"})
			continue
		}
		c.function(o, n)
	}
	for _, o := range was {
		if _, has := now[o.Name]; has {
			continue
		}
		why := "gone"
		if macro[o.Name] {
			why = "a macro with this name and another meaning replaces the function"
		}
		c.add(Entry{o.header, Function, o.Name, Removed, linkage(o) + o.Declare(o.Name), "", Breaking, why})
	}
}

// funcTypes compares the types of callbacks in a header. Any change breaks existing programs, whose callbacks have the
// old type.
func (c *comparison) funcTypes() {
	was, is := funcTypes(c.old.Release), funcTypes(c.new.Release)
	for _, n := range is {
		i := slices.IndexFunc(was, func(o function) bool { return o.Name == n.Name })
		if i < 0 {
			c.add(Entry{n.header, FuncType, n.Name, Added, "", n.Declare(n.Name), Additive, "new"})
			continue
		}
		before, now := was[i].Declare(n.Name), n.Declare(n.Name)
		if before == now {
			continue
		}
		v, why := protoVerdict(&was[i].Proto, &n.Proto)
		change := Retyped
		if v == None {
			change = Renamed
		} else {
			v, why = Breaking, why+": callbacks of programs have the old type"
		}
		c.add(Entry{n.header, FuncType, n.Name, change, before, now, v, why})
	}
	for _, o := range was {
		if !slices.ContainsFunc(is, func(n function) bool { return n.Name == o.Name }) {
			c.add(Entry{o.header, FuncType, o.Name, Removed, o.Declare(o.Name), "", Breaking, "gone"})
		}
	}
}

func funcTypes(r *model.Release) (all []function) {
	for i := range r.Headers {
		for k := range r.Headers[i].FuncTypes {
			all = append(all, function{&r.Headers[i].FuncTypes[k], r.Headers[i].Name})
		}
	}
	return all
}

func linkage(f function) string {
	if f.Inline != nil {
		return "inline "
	}
	return ""
}

func (c *comparison) function(o, n function) {
	if o.header != n.header {
		c.add(Entry{n.header, Function, n.Name, Moved, o.header, n.header, None, "declared in another header"})
	}
	if was, is := o.Declare(o.Name), n.Declare(n.Name); was != is {
		v, why := protoVerdict(&o.Proto, &n.Proto)
		change := Retyped
		if v == None {
			change = Renamed
		}
		c.add(Entry{n.header, Function, n.Name, change, was, is, v, why})
	}
	switch {
	case o.Inline == nil && n.Inline != nil:
		c.add(Entry{n.header, Dispatch, n.Name, Changed, "extern", describe(n.Inline), Breaking,
			"existing programs link to a symbol that the headers no longer declare"})
	case o.Inline != nil && n.Inline == nil:
		c.add(Entry{n.header, Dispatch, n.Name, Changed, describe(o.Inline), "extern", Additive,
			"newly built programs need a library that exports it"})
	case o.Inline != nil:
		c.dispatch(o, n)
	}
}

// dispatch compares how an inline function reaches the function that it calls. Existing programs contain the old code.
func (c *comparison) dispatch(o, n function) {
	was, is := describe(o.Inline), describe(n.Inline)
	if was == is {
		return
	}
	v, why := Additive, "existing programs call the old way, which works unless another entry removes its "+
		"slot"
	switch {
	case o.Inline.Guard != "" && n.Inline.Guard == "":
		v, why = Breaking, "the slot is no longer checked: it may be beyond the end of an older library's structure"
	case o.Inline.Absent != n.Inline.Absent || o.Inline.Errors != n.Inline.Errors:
		v, why = Breaking, "a missing slot is reported differently"
	}
	c.add(Entry{n.header, Dispatch, n.Name, Changed, was, is, v, why})
}

// describe describes how an inline function reaches the function that it calls.
func describe(in *model.Inline) string {
	parts := []string{string(in.Kind)}
	slot := in.Slot
	if in.Struct != "" {
		slot = in.Struct + "." + slot
	}
	for _, p := range []struct{ name, text string }{
		{"object", in.Object}, {"slot", slot}, {"guard", in.Guard}, {"absent", in.Absent}, {"errors",
			string(in.Errors)},
		{"calls", strings.Join(in.Calls, " ")}, {"arguments", strings.Join(in.Args, ", ")},
	} {
		if p.text != "" {
			parts = append(parts, p.name+" "+p.text)
		}
	}
	return strings.Join(parts, "; ")
}

// protoVerdict compares two function types with different spellings.
func protoVerdict(o, n *model.Proto) (Verdict, string) {
	if o.Variadic != n.Variadic || len(o.Params) != len(n.Params) {
		return Breaking, "the parameters differ"
	}
	v, why := None, "parameter names have no meaning"
	if o.Result != n.Result {
		v, why = Breaking, "the result type differs"
		if n.Result == withoutConst(o.Result) {
			v, why = Additive, "the result is no longer const"
		}
	}
	for i, p := range o.Params {
		q := n.Params[i]
		pv, pwhy := None, ""
		switch {
		case (p.Func == nil) != (q.Func == nil):
			pv = Breaking
		case p.Func != nil:
			if pv, _ = protoVerdict(p.Func, q.Func); pv == Additive {
				pv = Breaking // a function of the caller has the old type
			}
		case p.Type == q.Type:
			continue
		case withoutConst(q.Type) == p.Type:
			pv, pwhy = Additive, "the parameter became const"
		default:
			pv = Breaking
		}
		if pv == Breaking {
			pwhy = fmt.Sprintf("the type of parameter %d differs", i+1)
		}
		if pv > v {
			v, why = pv, pwhy
		}
	}
	return v, why
}
