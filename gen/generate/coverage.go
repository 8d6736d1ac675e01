// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Kinds lists the kinds of declarations that are counted, in the order of the summary.
var Kinds = []string{"structs", "unions", "enums", "enumerators", "functions", "inline functions", Callable, "slots",
	"function types", "macros"}

// Count holds the numbers of declarations of one kind in a header, by outcome.
type Count struct {
	Total, Emitted, Excepted int
	Missing                  []string
}

// HeaderCoverage counts the declarations of one header.
type HeaderCoverage struct {
	GOOS   string // "linux"
	Header string
	By     map[string]*Count // kind → counts
}

// cover compares the model with the generated source and fails if a declaration is neither emitted nor excepted by a
// row. It parses the printed source, which also detects bugs of the printer.
func cover(res *Result) ([]HeaderCoverage, error) {
	var all []HeaderCoverage
	var missing []string
	for _, plan := range res.Plans {
		src, err := readSource(res.Files, plan)
		if err != nil {
			return nil, err
		}
		var calls map[string]bool
		if plan.Verbs != nil {
			if calls, err = callable(res.Files, plan.Verbs); err != nil {
				return nil, err
			}
		}
		for i := range plan.Model.Headers {
			h := &plan.Model.Headers[i]
			if h.Support || !slices.Contains(plan.Package.Headers, h.Name) {
				continue
			}
			c := HeaderCoverage{GOOS: plan.Package.GOOS(), Header: h.Name, By: map[string]*Count{}}
			for _, kind := range Kinds {
				c.By[kind] = &Count{}
			}
			src.cover(h, c.By)
			if plan.Verbs != nil {
				coverCallable(h, plan.Verbs, calls, c.By[Callable])
			}
			all = append(all, c)
			for _, kind := range Kinds {
				for _, name := range c.By[kind].Missing {
					missing = append(missing, fmt.Sprintf("%s: %s: %s", h.Name, strings.TrimSuffix(kind, "s"), name))
				}
			}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("declared in a header, but neither generated nor in gen/rules/exceptions.txt:\n\t%s",
			strings.Join(missing, "\n\t"))
	}
	return all, nil
}

// source holds the declarations in the generated files of a package.
type source struct {
	plan    *rules.Plan
	goOf    map[string]string          // C name → Go identifier in the plan
	idents  map[string]bool            // package-level identifiers
	members map[string]map[string]bool // type → fields and methods
	listed  map[string]bool            // names in the function table
}

func readSource(files emit.Files, plan *rules.Plan) (*source, error) {
	s := &source{plan: plan, goOf: map[string]string{}, idents: map[string]bool{},
		members: map[string]map[string]bool{}, listed: map[string]bool{}}
	fset := token.NewFileSet()
	for name, text := range files {
		if path.Dir(name) != plan.Package.Name {
			continue
		}
		f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("generated source is invalid: %w", err)
		}
		for _, d := range f.Decls {
			s.declaration(d)
		}
	}
	for _, r := range plan.Records {
		s.goOf[r.Path] = r.Go
	}
	for _, e := range plan.Enums {
		if e.Of == "" {
			s.goOf["enum "+e.Tag] = e.Go
		}
		for _, n := range e.Names {
			s.goOf[n.C] = n.Go
		}
	}
	for _, c := range plan.Consts {
		s.goOf[c.C] = c.Go
	}
	for _, t := range plan.FuncTypes {
		s.goOf[t.C] = t.Go
	}
	for _, a := range plan.Aliases {
		s.goOf[a.C] = a.Go
	}
	return s, nil
}

func (s *source) declaration(d ast.Decl) {
	member := func(of, name string) {
		if s.members[of] == nil {
			s.members[of] = map[string]bool{}
		}
		s.members[of][name] = true
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			if star, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok {
				if id, ok := star.X.(*ast.Ident); ok {
					member(id.Name, d.Name.Name)
				}
			}
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.idents[spec.Name.Name] = true
				if t, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range t.Fields.List {
						for _, n := range f.Names {
							member(spec.Name.Name, n.Name)
						}
					}
				}
			case *ast.ValueSpec:
				for _, n := range spec.Names {
					s.idents[n.Name] = true
				}
				if spec.Names[0].Name == "Functions" {
					s.functionNames(spec)
				}
			}
		}
	}
}

// functionNames reads the Name of every row of the function table.
func (s *source) functionNames(table *ast.ValueSpec) {
	ast.Inspect(table, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Name" {
				if lit, ok := kv.Value.(*ast.BasicLit); ok {
					s.listed[strings.Trim(lit.Value, `"`)] = true
				}
			}
		}
		return true
	})
}

func (s *source) cover(h *model.Header, by map[string]*Count) {
	count := func(kind, c string, emitted bool) {
		n := by[kind]
		n.Total++
		switch {
		case emitted:
			n.Emitted++
		case slices.ContainsFunc(s.plan.Skipped, func(e rules.Exception) bool { return e.C == c }):
			n.Excepted++
		default:
			n.Missing = append(n.Missing, c)
		}
	}
	declared := func(c string) bool { return s.goOf[c] != "" && s.idents[s.goOf[c]] }
	for i := range h.Records {
		r := &h.Records[i]
		switch r.Kind {
		case model.Union:
			count("unions", r.CName(), declared(r.Tag))
		case model.Struct:
			count("structs", r.CName(), declared(r.Tag))
		default:
			if !declared(r.Tag) {
				by["structs"].Missing = append(by["structs"].Missing, r.CName())
			}
		}
		s.coverFields(r, r.Tag, r.Tag, count, declared)
	}
	for _, e := range h.Enums {
		names := true
		for _, n := range e.Enumerators {
			names = names && declared(n.Name)
			count("enumerators", n.Name, declared(n.Name))
		}
		count("enums", or(e.Tag, e.Enumerators[0].Name), names && (e.Tag == "" || declared("enum "+e.Tag)))
	}
	for _, m := range h.Macros {
		count("macros", "macro "+m.Name, declared(m.Name))
	}
	for _, t := range h.FuncTypes {
		count("function types", t.Name, declared(t.Name))
	}
	for _, f := range h.Funcs {
		kind := "functions"
		if f.Inline != nil {
			kind = "inline functions"
		}
		count(kind, f.Name, s.listed[f.Name])
	}
}

// coverFields counts nested records and slots. A member without a Go field or method is missing.
func (s *source) coverFields(r *model.Record, holder, at string, count func(kind, c string, emitted bool),
	declared func(string) bool) {
	for i := range r.Fields {
		f := &r.Fields[i]
		if f.Record != nil {
			kind := string(f.Record.Kind) + "s"
			if f.Name == "" { // stored in a field of the holder, which also has its members as fields or methods
				count(kind, fmt.Sprintf("%s (unnamed %s at %s)", at, f.Record.Kind, f.Offset), true)
				s.coverFields(f.Record, holder, at, count, declared)
				continue
			}
			inner := at + "." + f.Name
			count(kind, inner, declared(inner))
			s.coverFields(f.Record, inner, inner, count, declared)
		}
		here := s.members[s.goOf[holder]][rules.FieldName(f.Name)]
		if f.Func != nil {
			count("slots", at+"."+f.Name, here)
		} else if !here {
			count("structs", at+"."+f.Name, false)
		}
	}
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}
