// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// Explain sets Man on every function, tagged record and enum of the release: the page that describes it best, or "" if
// no page mentions it.
//
//   - A function belongs to the page of its name (links count), else to a page that lists it in NAME or declares it in
//     SYNOPSIS, else to one that declares it in its text, else to one that mentions it.
//   - A type belongs to a page that shows its members, else to the page of a function whose prototype uses it, else to
//     a page that mentions it.
//   - An enum belongs to a page that shows its members, else to one that mentions most of its enumerators, at least
//     half of them; else the rule for types applies, and last a page that mentions any enumerator.
//
// Among equally good pages, the one with the most similar name is chosen. A macro that aliases a declaration counts as
// another name of it, and so does the name without the leading underscores of a helper.
func (p *Pages) Explain(r *model.Release) {
	x := &explainer{Pages: p, other: map[string][]string{}, users: map[string][]string{}}
	for name := range p.pages {
		x.order = append(x.order, name)
	}
	slices.Sort(x.order)
	for i := range r.Headers {
		for _, m := range r.Headers[i].Macros {
			if m.Kind == model.Alias {
				x.other[m.Target] = append(x.other[m.Target], m.Name)
			}
		}
	}
	for i := range r.Headers {
		for j := range r.Headers[i].Funcs {
			f := &r.Headers[i].Funcs[j]
			f.Man = x.function(f.Name)
			x.uses(&f.Proto, f.Man)
		}
		for j := range r.Headers[i].FuncTypes {
			f := &r.Headers[i].FuncTypes[j]
			f.Man = x.function(f.Name)
		}
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		for j := range h.Records {
			if kind, tag, ok := strings.Cut(h.Records[j].CName(), " "); ok {
				if h.Records[j].Kind == model.Incomplete {
					kind = "" // opaque: no page shows its members
				}
				h.Records[j].Man = x.record(kind, tag)
			}
		}
		for j := range h.Enums {
			h.Enums[j].Man = x.enum(&h.Enums[j])
		}
	}
}

type explainer struct {
	*Pages
	order []string            // names of the pages, sorted
	other map[string][]string // tag or function → macros that alias it
	// tag → pages of the functions whose prototypes use it, in header order
	users map[string][]string
}

// names returns a declaration's name and the macros that alias it.
func (x *explainer) names(name string) []string {
	names := append([]string{name}, x.other[name]...)
	if public := strings.TrimLeft(name, "_"); public != name {
		names = append(names, public)
	}
	return names
}

func (x *explainer) function(name string) string {
	names := x.names(name)
	for _, n := range names {
		if page := x.resolve(n + ".3"); page != nil {
			return page.name
		}
	}
	for _, identifiers := range []func(*manPage) map[string]bool{
		func(m *manPage) map[string]bool { return m.titled },
		func(m *manPage) map[string]bool { return m.synopsis },
		func(m *manPage) map[string]bool { return m.declared },
		func(m *manPage) map[string]bool { return m.words },
	} {
		page := x.nearest(names, func(m *manPage) bool {
			return slices.ContainsFunc(names, func(n string) bool { return identifiers(m)[n] })
		})
		if page != "" {
			return page
		}
	}
	return ""
}

// uses records the page of a function for the types in its prototype.
func (x *explainer) uses(proto *model.Proto, page string) {
	if page == "" {
		return
	}
	note := func(spelling string) {
		if t, err := model.ParseType(spelling); err == nil {
			if _, tag := t.Tag(); tag != "" {
				x.users[tag] = append(x.users[tag], page)
			}
		}
	}
	note(proto.Result)
	for i := range proto.Params {
		if inner := proto.Params[i].Func; inner != nil {
			x.uses(inner, page)
			continue
		}
		note(proto.Params[i].Type)
	}
}

func (x *explainer) record(kind, tag string) string {
	names := x.names(tag)
	if page := x.shown(kind, names); page != "" {
		return page
	}
	return x.used(names)
}

func (x *explainer) enum(e *model.Enum) string {
	var names []string
	if e.Tag != "" {
		names = x.names(e.Tag)
		if page := x.shown("enum", names); page != "" {
			return page
		}
	}
	count := func(m *manPage) (n int) {
		for _, v := range e.Enumerators {
			if m.words[v.Name] {
				n++
			}
		}
		return n
	}
	most := 0
	for _, page := range x.pages {
		most = max(most, count(page))
	}
	// a page about the type is better than one that mentions a few enumerators in passing
	if 2*most < len(e.Enumerators) {
		if page := x.used(names); page != "" || most == 0 {
			return page
		}
	}
	return x.nearest(names, func(m *manPage) bool { return count(m) == most })
}

// shown finds a page that shows the members of a type.
func (x *explainer) shown(kind string, names []string) string {
	return x.nearest(names, func(m *manPage) bool {
		return slices.ContainsFunc(names, func(n string) bool { return m.defined[kind+" "+n] })
	})
}

// used finds the page of a function that takes or returns a type, or else a page that mentions the type.
func (x *explainer) used(names []string) string {
	var users []string
	for _, n := range names {
		users = append(users, x.users[n]...)
	}
	if len(users) > 0 {
		return mostSimilar(names, users)
	}
	return x.nearest(names, func(m *manPage) bool {
		return slices.ContainsFunc(names, func(n string) bool { return m.words[n] })
	})
}

// nearest returns the page that fits and whose name is most similar to one of the names.
func (x *explainer) nearest(names []string, fits func(*manPage) bool) string {
	var all []string
	for _, page := range x.order {
		if fits(x.pages[page]) {
			all = append(all, page)
		}
	}
	return mostSimilar(names, all)
}

// mostSimilar returns the page whose name is most similar to one of the names; of several, the first.
func mostSimilar(names, pages []string) string {
	best, most := "", -1.0
	for _, page := range pages {
		score := 0.0
		for _, name := range names {
			score = max(score, similarity(name, page[:len(page)-2]))
		}
		if score > most {
			best, most = page, score
		}
	}
	return best
}

// similarity returns the fraction of words that two C names have in common, from 0 to 1.
func similarity(a, b string) float64 {
	words := map[string]int{}
	for _, w := range strings.Split(a, "_") {
		words[w] |= 1
	}
	for _, w := range strings.Split(b, "_") {
		words[w] |= 2
	}
	both := 0
	for _, in := range words {
		if in == 3 {
			both++
		}
	}
	return float64(both) / float64(len(words))
}
