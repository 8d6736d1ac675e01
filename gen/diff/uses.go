// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// use is what the headers show about the allocation of a record: which side allocates it and which side knows its size.
type use struct {
	returned string  // how the library returns it: "ibv_create_cq_ex returns it"; "" if it does not
	guard    string  // how its length or its valid members are determined: "comp_mask marks the valid members"; or ""
	byValue  []place // members of other records that embed it
	passed   []place // parameters of library functions, and members of records, that point to it
}

// place is a parameter or member that holds or points to a record.
type place struct {
	name   string // "ibv_poll_cq.wc", "ibv_send_wr.sg_list"
	record string // for an embedded record: the record that embeds it
	path   string // path of the member in that record
	count  string // adjacent number that is or may be the number of elements; "" for a single element
	size   string // parameter that passes the size of an element to the library; or ""
}

// uses scans a release. Only arguments passed to the library matter: an inline function is compiled into the program
// and therefore always agrees with it.
func uses(x *index, j *Judgements) map[string]*use {
	a := &analysis{index: x, j: j, all: map[string]*use{}, sized: map[string]string{}}
	for _, r := range x.records {
		a.all[r.CName()] = &use{}
	}
	for _, h := range x.Headers {
		for i := range h.Funcs {
			a.returned(h.Funcs[i].Name, &h.Funcs[i].Proto)
			a.guards(h.Funcs[i].Inline)
			a.sizes(&h.Funcs[i])
		}
	}
	for _, r := range x.records {
		for _, m := range r.members {
			if m.Func != nil {
				a.returned(r.full(m), m.Func)
			}
			if u := a.all[r.CName()]; m.scope == "" && u.guard == "" && a.j.matches("guard", m.Name) {
				u.guard = m.Name + " marks the valid members"
			}
		}
	}
	a.rows()
	for _, h := range x.Headers {
		for i := range h.Funcs {
			if h.Funcs[i].Inline == nil {
				a.proto(h.Funcs[i].Name, &h.Funcs[i].Proto)
			}
		}
	}
	for _, r := range x.records {
		a.fields(r, r.Record, "")
	}
	return a.all
}

// Arrays returns, by C name of a record, the members and parameters that are or point to arrays of it. The record's
// size is the stride, so a release in which it differs reads other bytes.
func Arrays(r *model.Release) (map[string][]string, error) {
	j, err := DefaultJudgements()
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for name, u := range uses(newIndex(r), j) {
		for _, p := range slices.Concat(u.byValue, u.passed) {
			if p.count != "" && p.size == "" {
				all[name] = append(all[name], p.name)
			}
		}
	}
	return all, nil
}

type analysis struct {
	*index
	j   *Judgements
	all map[string]*use
	// "callee 3" → the inline function that passes the size of the element in argument 3, and the place
	sized map[string]string
}

// target returns the use of the record to which a type is a pointer, or nil.
func (a *analysis) target(spelled string) *use {
	t, err := model.ParseType(spelled)
	if err != nil || t.Pointers != 1 || len(t.Dims) > 0 {
		return nil
	}
	return a.all[t.Base]
}

func (a *analysis) returned(name string, p *model.Proto) {
	if u := a.target(p.Result); u != nil && u.returned == "" {
		u.returned = name + " returns it"
	}
}

// guards records the member that an inline function compares before it uses a later member.
func (a *analysis) guards(in *model.Inline) {
	if in == nil || in.Guard == "" {
		return
	}
	tag, member, _ := strings.Cut(in.Guard, ".")
	if u := a.all["struct "+tag]; u != nil && u.guard == "" {
		u.guard = member + " holds its length"
	}
}

// sizes records where an inline function passes sizeof(*x) together with x, so that the called function knows the size.
func (a *analysis) sizes(f *model.Func) {
	in := f.Inline
	if in == nil {
		return
	}
	callees := in.Calls
	if in.Slot != "" {
		callees = []string{in.Struct + "." + in.Slot}
	}
	for at, text := range in.Args {
		pointed, ok := strings.CutPrefix(strings.ReplaceAll(text, " ", ""), "sizeof(*")
		if i := slices.Index(in.Args, strings.TrimSuffix(pointed, ")")); ok && i >= 0 && len(callees) == 1 {
			a.sized[fmt.Sprintf("%s %d", callees[0], i)] = fmt.Sprintf("%d", at)
		}
	}
}

// rows applies the judgements about records. A row fires if it has an effect.
func (a *analysis) rows() {
	for name, u := range a.all {
		if r := a.j.Lookup("returned", name); r != nil && u.returned == "" {
			r.Fired, u.returned = true, r.Columns[3]
		}
		if r := a.j.Lookup("guarded", name); r != nil && u.guard == "" && u.returned == "" {
			r.Fired, u.guard = true, r.Columns[3]
		}
	}
}

// proto records the records that are passed to a library function.
func (a *analysis) proto(name string, p *model.Proto) {
	for i, param := range p.Params {
		if param.Func != nil {
			a.proto(name+"."+param.Name, param.Func)
			continue
		}
		u := a.target(param.Type)
		if u == nil || u.returned != "" {
			continue
		}
		at := place{name: name + "." + param.Name}
		if at.size = a.sized[fmt.Sprintf("%s %d", name, i)]; at.size != "" {
			var k int
			fmt.Sscan(at.size, &k)
			at.size = p.Params[k].Name
		} else if i+1 < len(p.Params) && integer(p.Params[i+1].Type) && a.j.word(p.Params[i+1].Name) == "size" {
			at.size = p.Params[i+1].Name
		}
		at.count = a.count(at.name, p.Params, i, at.size)
		u.passed = append(u.passed, at)
	}
}

// count returns the number that counts the elements of parameter i. Without a row, any number may be a count. A count
// between two pointers belongs to the one with the similar name, or else to both.
func (a *analysis) count(place string, params []model.Param, i int, size string) string {
	for _, k := range []int{i - 1, i + 1} {
		if k < 0 || k >= len(params) || !integer(params[k].Type) || params[k].Name == size {
			continue
		}
		switch a.j.word(params[k].Name) {
		case "plain":
			continue
		case "size":
			continue // a size before the pointer belongs to another parameter; the caller has handled a size after it
		}
		if other := 2*k - i; other >= 0 && other < len(params) && a.couldBeArray(params[other]) &&
			shareWord(params[k].Name, params[other].Name) && !shareWord(params[k].Name, params[i].Name) {
			continue
		}
		if r := a.j.Lookup("single", place); r != nil {
			r.Fired = true
			continue
		}
		return params[k].Name
	}
	return ""
}

// couldBeArray reports whether a parameter may point to more than one element. The library allocates single elements.
func (a *analysis) couldBeArray(p model.Param) bool {
	t, err := model.ParseType(p.Type)
	if err != nil || t.Pointers == 0 {
		return false
	}
	u := a.target(p.Type)
	return u == nil || u.returned == ""
}

// fields records the records that a record embeds or points to. Counts are found as for parameters.
func (a *analysis) fields(r *record, in *model.Record, scope string) {
	params := make([]model.Param, len(in.Fields))
	for i := range in.Fields {
		params[i] = model.Param{Name: in.Fields[i].Name, Type: in.Fields[i].Type}
	}
	for i := range in.Fields {
		f := &in.Fields[i]
		path := strings.TrimPrefix(scope+"."+f.Name, ".")
		if f.Name == "" {
			path = scope
		}
		full := r.Tag + "." + path
		switch {
		case f.Func != nil:
			a.proto(full, f.Func)
		case f.Record != nil:
			a.fields(r, f.Record, path)
		default:
			t, err := model.ParseType(f.Type)
			if err != nil {
				continue
			}
			if u := a.all[t.Base]; u != nil && t.Pointers == 0 {
				at := place{name: full, record: r.CName(), path: path}
				if len(t.Dims) > 0 {
					at.count = dims(t.Dims)
				}
				u.byValue = append(u.byValue, at)
			}
			if u := a.target(f.Type); u != nil && u.returned == "" {
				at := place{name: full}
				if in.Kind == model.Struct {
					at.count = a.count(full, params, i, "")
				}
				u.passed = append(u.passed, at)
			}
		}
	}
}

// integer reports whether a type can hold a count: not a pointer, array, record or enum.
func integer(spelled string) bool {
	t, err := model.ParseType(spelled)
	if err != nil || t.Pointers > 0 || len(t.Dims) > 0 {
		return false
	}
	kind, _ := t.Tag()
	return kind == "" && t.Base != "void" && t.Base != "_Bool" && !strings.HasPrefix(t.Base, "__be")
}

// shareWord reports whether two C names have a word in common, such as num_actions and actions_attr.
func shareWord(a, b string) bool {
	words := strings.Split(b, "_")
	return slices.ContainsFunc(strings.Split(a, "_"), func(w string) bool {
		return len(w) > 2 && slices.ContainsFunc(words, func(v string) bool { return stem(v) == stem(w) })
	})
}

func stem(w string) string {
	if s, ok := strings.CutSuffix(w, "ies"); ok {
		return s + "y"
	}
	return strings.TrimSuffix(w, "s")
}
