// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// Packages returns generated packages by name, in generation order. Without names, it returns the packages that call a
// library, because the kernel's interface does not depend on installed headers.
func Packages(names ...string) ([]rules.Package, error) {
	if len(names) == 0 {
		return rules.Calling(), nil
	}
	var all []rules.Package
	known := make([]string, 0, len(rules.Packages))
	for _, p := range rules.Packages {
		known = append(known, p.Name)
		if slices.Contains(names, p.Name) {
			all = append(all, p)
		}
	}
	for _, name := range names {
		if i := slices.IndexFunc(rules.Foreign, func(p rules.Package) bool { return p.Name == name }); i >= 0 {
			return nil, foreign("package "+name, rules.Foreign[i].GOOS())
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown package %q; use one of %s", name, strings.Join(known, ", "))
		}
	}
	return all, nil
}

// foreign is the error for a package or a project of another system than Linux.
func foreign(what, goos string) error {
	return fmt.Errorf("%s has the layouts of %s, but only installations on Linux can be checked; use goverbs diff for "+
		"its differences from rdma-core", what, goos)
}

// projectsOf returns the projects of the packages' headers, each with its packages.
func projectsOf(packages []rules.Package) (all []*project.Project, by map[string][]rules.Package) {
	by = map[string][]rules.Package{}
	for _, p := range project.All {
		for _, pkg := range packages {
			if pkg.Project() == p.Name {
				by[p.Name] = append(by[p.Name], pkg)
			}
		}
		if len(by[p.Name]) > 0 {
			all = append(all, p)
		}
	}
	return all, by
}

// ofProject returns the packages whose headers belong to a project.
func ofProject(packages []rules.Package, of string) []rules.Package {
	return slices.DeleteFunc(packages, func(p rules.Package) bool { return p.Project() != of })
}

// withImports adds the packages whose types the packages use.
func withImports(packages []rules.Package) []rules.Package {
	return slices.DeleteFunc(slices.Clone(rules.Packages), func(p rules.Package) bool {
		return !slices.ContainsFunc(packages,
			func(q rules.Package) bool { return q.Name == p.Name || slices.Contains(q.Imports, p.Name) })
	})
}

func headersOf(packages []rules.Package) []string {
	var all []string
	for _, p := range packages {
		all = append(all, p.Headers...)
	}
	return all
}

func namesOf(packages []rules.Package) []string {
	all := make([]string, 0, len(packages))
	for _, p := range packages {
		all = append(all, p.Name)
	}
	return all
}

// development returns the Debian package of a header.
func development(header string) string {
	of := project.Of(header)
	if of == nil {
		return "the package that contains it"
	}
	return of.PackageOf(header)
}

// installed splits packages into those whose first header, and the first headers of their imports, are in an include
// directory, and the others.
func installed(includeDir string, packages []rules.Package) (here []rules.Package, absent []Absent) {
	for _, p := range packages {
		lacks := ""
		for _, q := range withImports([]rules.Package{p}) {
			if _, err := os.Stat(filepath.Join(includeDir, q.Headers[0])); err != nil && lacks == "" {
				lacks = q.Headers[0]
			}
		}
		if lacks == "" {
			here = append(here, p)
			continue
		}
		absent = append(absent,
			Absent{Name: p.Name, Why: fmt.Sprintf("%s is not in %s; install %s", lacks, includeDir,
				development(lacks))})
	}
	return here, absent
}

// restrict returns a release with only the headers of some packages and the C library declarations that they need. In a
// model, an incomplete type belongs to the first header that uses it, which depends on the other headers; restrict
// moves it to the first remaining header.
func restrict(r *model.Release, packages []rules.Package) *model.Release {
	some := *r
	some.Headers = nil
	names := headersOf(packages)
	needed := map[string]bool{}
	var incomplete []model.Record
	for _, h := range r.Headers {
		var own []model.Record
		for _, rec := range h.Records {
			if rec.Kind == model.Incomplete {
				incomplete = append(incomplete, rec)
			} else {
				own = append(own, rec)
			}
		}
		if h.Records = own; slices.Contains(names, h.Name) {
			need(&h, needed)
			some.Headers = append(some.Headers, h)
		}
	}
	for again := true; again; { // needed types need further types
		before := len(needed)
		for _, h := range r.Headers {
			if h.Support {
				h.Records = slices.DeleteFunc(slices.Clone(h.Records),
					func(rec model.Record) bool { return !needed[rec.CName()] })
				need(&h, needed)
			}
		}
		again = len(needed) > before
	}
	for _, h := range r.Headers {
		if !h.Support {
			continue
		}
		h.Records = slices.DeleteFunc(slices.Clone(h.Records),
			func(rec model.Record) bool { return !needed[rec.CName()] })
		h.Enums = slices.DeleteFunc(slices.Clone(h.Enums), func(e model.Enum) bool { return !needed["enum "+e.Tag] })
		if len(h.Records)+len(h.Enums) > 0 {
			some.Headers = append(some.Headers, h)
		}
	}
	incomplete = slices.DeleteFunc(incomplete, func(rec model.Record) bool { return !needed[rec.CName()] })
	if len(some.Headers) > 0 {
		first := &some.Headers[0]
		first.Records = slices.Concat(first.Records, incomplete)
	}
	return &some
}

// need records the types that a header refers to.
func need(h *model.Header, needed map[string]bool) {
	spelled := func(t string) {
		if parsed, err := model.ParseType(t); err == nil {
			needed[parsed.Base] = true
		}
	}
	var proto func(p *model.Proto)
	proto = func(p *model.Proto) {
		spelled(p.Result)
		for _, a := range p.Params {
			if a.Func != nil {
				proto(a.Func)
			} else {
				spelled(a.Type)
			}
		}
	}
	var record func(rec *model.Record)
	record = func(rec *model.Record) {
		for i := range rec.Fields {
			switch f := &rec.Fields[i]; {
			case f.Record != nil:
				record(f.Record)
			case f.Func != nil:
				proto(f.Func)
			default:
				spelled(f.Type)
			}
		}
	}
	for i := range h.Records {
		record(&h.Records[i])
	}
	for i := range h.Funcs {
		proto(&h.Funcs[i].Proto)
	}
	for i := range h.FuncTypes {
		proto(&h.FuncTypes[i].Proto)
	}
}
