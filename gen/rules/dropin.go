// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed dropin.txt
var dropinText string

// Dropin is a C library that replaces one of the project's libraries under its name.
type Dropin struct {
	SOName   string // "libibverbs.so.1"
	Library  string // "libibverbs"
	Source   string // the release that it is generated from
	Base     bool   // this library loads the engine, also for the others
	Symbols  []DropinSymbol
	Versions []model.Version // each version follows those that it inherits from
}

// DropinSymbol is a name that a Dropin exports.
type DropinSymbol struct {
	Name    string
	Func    *model.Func // nil if there is no prototype; calls fail
	Fails   Convention
	Written bool     // hand-written in C
	Object  int64    // size of a data object, or 0 for a function
	Default string   // the default version for newly linked programs
	Also    []string // other versions with the same meaning
	Old     []string // versions with other structure layouts, which only old programs use
}

// Dropins returns the replacements for the libraries of the packages. They export every symbol that any recorded
// release exports.
func Dropins(recorded []*model.Release, plans []*Plan) ([]*Dropin, error) {
	written := rows.Read("gen/rules/dropin.txt", dropinText, rows.Form{Want: "NAME WHY", Least: 2, Words: true,
		Key: []int{0}})
	errs := []error{written.Err()}
	var all []*Dropin
	for _, p := range plans {
		if p.Verbs == nil || !p.Verbs.Verbs.Dropin {
			continue
		}
		d := &Dropin{SOName: p.Verbs.Verbs.SOName, Library: p.Verbs.Verbs.Name, Source: p.Source(),
			Base: p.Verbs.Verbs.Needs == ""}
		d.collect(recorded, p.Project)
		if len(d.Symbols) == 0 {
			continue
		}
		d.bind(p, written)
		all = append(all, d)
	}
	for _, row := range written.Rows {
		if !row.Fired && len(all) > 0 {
			errs = append(errs, fmt.Errorf("%s: stale row: no library exports %s, or a header declares it", row.At,
				row.Columns[0]))
		}
	}
	return all, errors.Join(errs...)
}

// collect merges the symbols of all releases.
func (d *Dropin) collect(recorded []*model.Release, project string) {
	by := map[string]*DropinSymbol{}
	taken := map[model.Symbol]bool{}              // by name and version
	for _, r := range slices.Backward(recorded) { // newest release first
		for _, l := range r.Libraries {
			if r.Project != project || l.Name != d.SOName {
				continue
			}
			for _, v := range l.Versions {
				if !slices.ContainsFunc(d.Versions, func(o model.Version) bool { return o.Name == v.Name }) {
					d.Versions = append(d.Versions, v)
				}
			}
			for _, s := range l.Symbols {
				known := by[s.Name]
				if known == nil {
					known = &DropinSymbol{Name: s.Name}
					if s.Object {
						known.Object = s.Size
					}
					by[s.Name] = known
				}
				key := model.Symbol{Name: s.Name, Version: s.Version}
				if taken[key] {
					continue
				}
				taken[key] = true
				switch {
				case s.Old:
					known.Old = append(known.Old, s.Version)
				case known.Default == "":
					known.Default = s.Version
				default:
					known.Also = append(known.Also, s.Version)
				}
			}
		}
	}
	for _, s := range by {
		slices.Sort(s.Old)
		slices.Sort(s.Also)
		d.Symbols = append(d.Symbols, *s)
	}
	slices.SortFunc(d.Symbols, func(a, b DropinSymbol) int { return strings.Compare(a.Name, b.Name) })
}

// bind finds the prototypes and error conventions of the symbols.
func (d *Dropin) bind(p *Plan, written *rows.File) {
	for i := range d.Symbols {
		s := &d.Symbols[i]
		for _, h := range p.Model.Headers {
			for j, f := range h.Funcs {
				if f.Name == s.Name && f.Inline == nil {
					s.Func = &h.Funcs[j]
				}
			}
		}
		for _, f := range p.Verbs.Funcs {
			if f.C == s.Name {
				s.Fails = f.Convention
			}
		}
		if row := written.Find(s.Name); row != nil && s.Func == nil {
			row.Fired, s.Written = true, true
		}
	}
}

// DropinSlots holds the offsets of function pointers in the structure that embeds a context.
type DropinSlots struct {
	Source   string
	Context  int64   // offset of the context
	Pointers []int64 // offsets of the functions that return a pointer
}

// ContextSlots finds the function pointers of a context, which have the same offsets on every target.
func ContextSlots(r *model.Release) (*DropinSlots, error) {
	records := map[string]*model.Record{}
	for _, h := range r.Headers {
		for i := range h.Records {
			records[h.Records[i].Tag] = &h.Records[i]
		}
	}
	s := &DropinSlots{Source: r.String()}
	var errs []error
	add := func(tag string, start int64) (fields map[string]int64) {
		fields = map[string]int64{}
		record := records[tag]
		if record == nil {
			errs = append(errs, fmt.Errorf("no header declares struct %s", tag))
			return fields
		}
		for _, f := range record.Fields {
			at := start + f.Offset.Default
			fields[f.Name] = at
			if f.Func != nil && strings.HasSuffix(f.Func.Result, "*") {
				s.Pointers = append(s.Pointers, at)
			}
		}
		return fields
	}
	s.Context = add("verbs_context", 0)["context"]
	add("ibv_context_ops", add("ibv_context", s.Context)["ops"])
	return s, errors.Join(errs...)
}
