// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// importTypes adds the types of imported packages.
func (r *resolver) importTypes(earlier []*Plan) error {
	r.enumOf = map[string]model.Enum{}
	for _, name := range r.pkg.Imports {
		i := slices.IndexFunc(earlier, func(p *Plan) bool { return p.Package.Name == name })
		if i < 0 {
			return fmt.Errorf("package %s imports %s, which must precede it in gen/rules/packages.go",
				r.pkg.Name, name)
		}
		p := earlier[i]
		r.plan.Shared = or(p.Shared, p.Import)
		for c, goType := range p.types {
			r.goOf[c] = goName{Import: p.Import, Name: goType}
		}
		for key, types := range p.sized {
			for size, name := range types {
				if name.Import == "" {
					name.Import = p.Import
				}
				r.sized(key, size, name)
			}
		}
		for tag, e := range p.enumOf {
			r.enumOf[tag] = e
		}
	}
	for _, h := range r.in.Release.Headers {
		for _, e := range h.Enums {
			if e.Tag != "" {
				r.enumOf[e.Tag] = e
			}
		}
	}
	return nil
}

// chooseHeaders selects the package's own headers, and the support types that it needs and no earlier package provides.
func (r *resolver) chooseHeaders() {
	var support []*model.Header
	needed := map[string]bool{}
	for i := range r.in.Release.Headers {
		h := &r.in.Release.Headers[i]
		switch {
		case h.Support:
			support = append(support, h)
		case contains(r.pkg.Headers, h.Name):
			r.headers = append(r.headers, h)
			for j := range h.Records {
				need(&h.Records[j], needed)
			}
			for _, f := range slices.Concat(h.Funcs, h.FuncTypes) {
				needProto(&f.Proto, needed)
			}
		}
	}
	for again := true; again; { // needed types may need others
		again = false
		for _, h := range support {
			for i := range h.Records {
				if c := h.Records[i].CName(); needed[c] {
					before := len(needed)
					need(&h.Records[i], needed)
					again = again || len(needed) > before
				}
			}
		}
	}
	for _, h := range support {
		some := &model.Header{Name: h.Name, Support: true}
		for _, rec := range h.Records {
			if _, imported := r.goOf[rec.CName()]; needed[rec.CName()] && !imported {
				some.Records = append(some.Records, rec)
			}
		}
		for _, e := range h.Enums {
			if c := "enum " + e.Tag; needed[c] && r.goOf[c].Name == "" {
				some.Enums = append(some.Enums, e)
			}
		}
		r.headers = append(r.headers, some)
	}
}

// need records the types that a record refers to.
func need(rec *model.Record, needed map[string]bool) {
	for i := range rec.Fields {
		f := &rec.Fields[i]
		switch {
		case f.Record != nil:
			need(f.Record, needed)
		case f.Func != nil:
			needProto(f.Func, needed)
		default:
			needType(f.Type, needed)
		}
	}
}

func needProto(p *model.Proto, needed map[string]bool) {
	needType(p.Result, needed)
	for _, a := range p.Params {
		if a.Func != nil {
			needProto(a.Func, needed)
		} else {
			needType(a.Type, needed)
		}
	}
}

func needType(spelled string, needed map[string]bool) {
	if t, err := model.ParseType(spelled); err == nil {
		needed[t.Base] = true
	}
}

// CheckUnread rejects an upstream header that no package covers, unless a row excepts it.
func CheckUnread(in Input, x *Exceptions) (excepted []Exception, err error) {
	var missing []string
	for _, name := range in.Release.Unread {
		if e := x.find(Skip, "header "+name); e != nil {
			excepted = append(excepted, *e)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s: %s installs headers that no generated package covers: %s; add them to "+
			"gen/rules/packages.go, or add skip rows for \"header NAME\" to gen/rules/exceptions.txt", in.Path,
			in.Release.Project, strings.Join(missing, ", "))
	}
	return excepted, nil
}
