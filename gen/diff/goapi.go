// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
)

// API maps the identifiers that generated packages export to their declarations. "SendWR" is a type, "SendWR.NumSGE" a
// field, "SendWR.WR()" a method. Constants include their value: "const WROpcode = 2". It is parsed from the printed
// source, which also detects bugs of the printer.
type API map[string]map[string]string

// ReadAPI reads the packages among generated files, whose names are paths such as "ibv/struct.go". A type that differs
// by target has all its declarations.
func ReadAPI(files map[string][]byte) (API, error) {
	api, values := API{}, map[string]map[string]string{}
	fset := token.NewFileSet()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := parser.ParseFile(fset, name, files[name], parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("generated source is invalid: %w", err)
		}
		pkg := path.Dir(name)
		if api[pkg] == nil {
			api[pkg], values[pkg] = map[string]string{}, map[string]string{}
		}
		r := &apiReader{fset: fset, of: api[pkg], values: values[pkg]}
		for _, d := range f.Decls {
			r.declaration(d)
		}
	}
	for pkg, of := range api {
		for name, text := range of {
			of[name] = withValue(text, values[pkg][name], values[pkg])
		}
	}
	return api, nil
}

func (a API) packages() []string {
	var all []string
	for _, p := range slices.Sorted(maps.Keys(a)) {
		all = append(all, inPackage(p))
	}
	return all
}

func inPackage(pkg string) string { return "package " + pkg }

type apiReader struct {
	fset   *token.FileSet
	of     map[string]string
	values map[string]string // values of constants, as written
}

// withValue appends the value to a constant's declaration. An alias of a constant in the package has the value of that
// constant.
func withValue(text, value string, values map[string]string) string {
	for range values { // bounded, since names may form a loop
		other, ok := values[value]
		if !ok {
			break
		}
		value = other
	}
	if value == "" {
		return text
	}
	return text + valueSign + value
}

const valueSign = " = "

// sameButValue reports whether two constants differ only in their values.
func sameButValue(was, is string) bool {
	was, hadValue := cutValue(was)
	is, hasValue := cutValue(is)
	return hadValue && hasValue && was == is
}

func cutValue(text string) (of string, ok bool) {
	of, _, ok = strings.Cut(text, valueSign)
	return of, ok && strings.HasPrefix(text, token.CONST.String())
}

func (r *apiReader) text(n ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, r.fset, n); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// put adds an exported identifier. The declaration under another build constraint is appended to the first.
func (r *apiReader) put(name, text string) {
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "()"), ".") {
		if !token.IsExported(part) {
			return
		}
	}
	putVariant(r.of, name, text)
}

func putVariant(all map[string]string, name, text string) {
	const separator = " | "
	if old, ok := all[name]; ok && !slices.Contains(strings.Split(old, separator), text) {
		texts := append(strings.Split(old, separator), text)
		slices.Sort(texts)
		text = strings.Join(texts, separator)
	} else if ok {
		text = old
	}
	all[name] = text
}

func (r *apiReader) declaration(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		sig := strings.TrimPrefix(r.text(d.Type), "func")
		if d.Recv == nil {
			r.put(d.Name.Name, "func"+sig)
			return
		}
		of := d.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if generic, ok := of.(*ast.IndexExpr); ok {
			of = generic.X
		}
		r.put(r.text(of)+"."+d.Name.Name+"()", "method"+sig)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			r.spec(d.Tok, s)
		}
	}
}

func (r *apiReader) spec(tok token.Token, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		text := tok.String()
		if s.Type != nil {
			text += " " + r.text(s.Type)
		}
		for i, n := range s.Names {
			r.put(n.Name, text)
			if tok == token.CONST && i < len(s.Values) {
				putVariant(r.values, n.Name, r.text(s.Values[i]))
			}
		}
	case *ast.TypeSpec:
		st, ok := s.Type.(*ast.StructType)
		if !ok {
			eq := ""
			if s.Assign.IsValid() {
				eq = "= "
			}
			r.put(s.Name.Name, "type "+eq+r.text(s.Type))
			return
		}
		r.put(s.Name.Name, "type struct")
		for _, f := range st.Fields.List {
			for _, n := range f.Names {
				r.put(s.Name.Name+"."+n.Name, "field "+r.text(f.Type))
			}
		}
	}
}

// goNames compares the exported identifiers of generated packages.
func (c *comparison) goNames(old, new API) {
	if old == nil || new == nil {
		c.note("Go identifiers are not compared")
		return
	}
	for _, pkg := range slices.Sorted(maps.Keys(new)) {
		if old[pkg] == nil {
			c.add(Entry{inPackage(pkg), GoName, pkg, Added, "", fmt.Sprintf("package of %d identifiers", len(new[pkg])),
				Additive, "new"})
			continue
		}
		c.goPackage(inPackage(pkg), old[pkg], new[pkg])
	}
	for _, pkg := range slices.Sorted(maps.Keys(old)) {
		if new[pkg] == nil {
			c.add(Entry{inPackage(pkg), GoName, pkg, Removed, fmt.Sprintf("package of %d identifiers", len(old[pkg])),
				"", Breaking, "gone"})
		}
	}
}

func (c *comparison) goPackage(where string, old, new map[string]string) {
	names := map[string]bool{}
	for name := range old {
		names[name] = true
	}
	for name := range new {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, had := old[name]
		is, has := new[name]
		holder, _, member := strings.Cut(name, ".")
		if member && (old[holder] == "") != (new[holder] == "") {
			continue // added or removed together with its type
		}
		switch {
		case !had:
			c.add(Entry{where, GoName, name, Added, "", is, Additive, "new"})
		case !has && member && new[name+"()"] != "":
			c.add(Entry{where, GoName, name, Changed, was, new[name+"()"], Breaking,
				"now a method, because it shares bytes with other members"})
		case !has && member && c.j.reserved(name):
			c.add(Entry{where, GoName, name, Removed, was, "", Additive, "reserved bytes"})
		case !has:
			c.add(Entry{where, GoName, name, Removed, was, "", Breaking, "programs that name it no longer compile"})
		case was != is && sameButValue(was, is):
			c.add(Entry{where, GoName, name, Revalued, was, is, Breaking, "existing programs use the old value"})
		case was != is && member && c.j.reserved(name):
			c.add(Entry{where, GoName, name, Retyped, was, is, Additive, "reserved bytes"})
		case was != is:
			c.add(Entry{where, GoName, name, Retyped, was, is, Breaking, "programs that use it may no longer compile"})
		}
	}
}
