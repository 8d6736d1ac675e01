// SPDX-License-Identifier: BSD-2-Clause

// Package verbsdoc generates docs/verbs.md, which maps every function of verbs.h to package rdma or to
// generated/libibverbs, and docs/rpma.md, which maps every function of librpma.h to package rpma.
package verbsdoc

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// header is the header whose functions the page lists.
const header = "infiniband/verbs.h"

// Stated is a C function named in a doc comment of package rdma.
type Stated struct {
	C     string // "ibv_post_send"
	Go    string // "QP.PostSend"
	Place string // "qp.go:412"
}

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// ReadRDMA parses the lines "C: ibv_x, ibv_y" in doc comments of exported names.
func ReadRDMA(dirs ...string) ([]Stated, error) {
	var all []Stated
	read := func(set *token.FileSet, f *ast.File) error {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if name, ok := goName(d); ok {
					if err := stated(&all, set, d.Doc, name); err != nil {
						return err
					}
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					t, ok := s.(*ast.TypeSpec)
					if !ok || !t.Name.IsExported() {
						continue
					}
					doc := t.Doc
					if doc == nil {
						doc = d.Doc
					}
					if err := stated(&all, set, doc, t.Name.Name); err != nil {
						return err
					}
					if err := fields(&all, set, t); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	for _, dir := range dirs {
		if err := eachFile(dir, read); err != nil {
			return all, err
		}
	}
	return all, nil
}

// fields reads the comments of a struct's exported fields.
func fields(all *[]Stated, set *token.FileSet, t *ast.TypeSpec) error {
	structure, ok := t.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, f := range structure.Fields.List {
		for _, name := range f.Names {
			if !name.IsExported() {
				continue
			}
			if err := stated(all, set, f.Doc, t.Name.Name+"."+name.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func stated(all *[]Stated, set *token.FileSet, doc *ast.CommentGroup, name string) error {
	for line := range strings.Lines(doc.Text()) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "C: ")
		if !ok {
			continue
		}
		at := set.Position(doc.Pos())
		place := fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)
		for c := range strings.SplitSeq(list, ", ") {
			if !identifier.MatchString(c) {
				return fmt.Errorf("%s: %s: %q is not the name of a C function", place, name, c)
			}
			*all = append(*all, Stated{c, name, place})
		}
	}
	return nil
}

// goName returns the name of an exported function, or of a method of an exported type.
func goName(d *ast.FuncDecl) (string, bool) {
	if !d.Name.IsExported() || d.Recv == nil {
		return d.Name.Name, d.Name.IsExported()
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	id, ok := t.(*ast.Ident)
	if !ok || !id.IsExported() {
		return "", false
	}
	return id.Name + "." + d.Name.Name, true
}

// prototype matches the function of a line "C: int ibv_x(…) (verbs.h)" in generated code.
var prototype = regexp.MustCompile(`^C: [^(]*?([A-Za-z_][A-Za-z0-9_]*)\(`)

// ReadGenerated maps C names to the Go names of a generated package.
func ReadGenerated(dir string) (map[string]string, error) {
	all := map[string]string{}
	return all, eachFile(dir, func(_ *token.FileSet, f *ast.File) error {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name, ok := goName(fn)
			for line := range strings.Lines(fn.Doc.Text()) {
				if m := prototype.FindStringSubmatch(line); m != nil && ok {
					all[m[1]] = name
				}
			}
		}
		return nil
	})
}

func eachFile(dir string, f func(*token.FileSet, *ast.File) error) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no Go in %s", dir)
	}
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if err := f(set, file); err != nil {
			return err
		}
	}
	return nil
}

// Page returns docs/verbs.md, generated from files below root.
func Page(root string) (string, error) {
	data, err := headers.Model(headers.Primary("rdma-core"))
	if err != nil {
		return "", err
	}
	release, err := model.Decode(headers.Primary("rdma-core"), data)
	if err != nil {
		return "", err
	}
	// subpackages whose types package rdma aliases
	inRDMA, err := ReadRDMA(filepath.Join(root, "rdma"))
	if err != nil {
		return "", err
	}
	for _, vendor := range []string{"efa", "mlx5"} {
		external, err := ReadRDMA(filepath.Join(root, "rdma", vendor))
		if err != nil {
			return "", err
		}
		for _, s := range external {
			inRDMA = append(inRDMA, Stated{s.C, vendor + "." + s.Go, vendor + "/" + s.Place})
		}
	}
	known := map[string]bool{}
	generated := map[string]string{} // functions of verbs.h
	for _, p := range rules.Calling() {
		names, err := ReadGenerated(filepath.Join(root, "generated", p.Verbs.Name))
		if err != nil {
			return "", err
		}
		for c := range names {
			known[c] = true
		}
		if p.Verbs.Name == "libibverbs" {
			generated = names
		}
	}
	return page(release, inRDMA, generated, known)
}

// page fails for a function that does not exist, and for one without a counterpart.
func page(release *model.Release, inRDMA []Stated, generated map[string]string, known map[string]bool) (string, error) {
	where := map[string][]string{}
	for _, s := range inRDMA {
		if !known[s.C] {
			return "", fmt.Errorf("rdma/%s: %s names %s, which no header declares", s.Place, s.Go, s.C)
		}
		if !slices.Contains(where[s.C], s.Go) {
			where[s.C] = append(where[s.C], s.Go)
		}
	}
	i := slices.IndexFunc(release.Headers, func(h model.Header) bool { return h.Name == header })
	if i < 0 {
		return "", fmt.Errorf("rdma-core %s has no %s", release.Name, header)
	}
	funcs := slices.SortedFunc(slices.Values(release.Headers[i].Funcs),
		func(a, b model.Func) int { return cmp.Compare(a.Name, b.Name) })
	var objects, lines, nowhere []string
	for _, f := range funcs {
		call, callable := generated[f.Name]
		man := ""
		if name, section, ok := strings.Cut(f.Man, "."); ok {
			man = fmt.Sprintf("%s(%s)", name, section)
		}
		in := where[f.Name]
		switch {
		case len(in) > 0:
			objects = append(objects, fmt.Sprintf("| %s | %s | %s |", f.Name, code(in), man))
		case callable:
			lines = append(lines, fmt.Sprintf("| %s | `libibverbs.%s` | %s |", f.Name, call, man))
		default:
			nowhere = append(nowhere, f.Name)
		}
	}
	if nowhere != nil {
		return "", fmt.Errorf("neither rdma nor generated/libibverbs has %s", strings.Join(nowhere, ", "))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# C function → Go

Every function of verbs.h (rdma-core %s), %d in all. "make docs" generates this page from the recorded model, the lines
"C:" of package rdma's documentation, and generated/libibverbs; a test fails when it is stale.

## In package rdma

%d functions are a method of an object, or part of one. Each is also a function of generated/libibverbs, for the object
that the method C returns.

| C | rdma | man page |
|---|---|---|
%s

## One line through generated/libibverbs

%d functions need no method: names of enumerators, which String of the ibv type returns without C; arithmetic;
conversions of pointers; and parts of the functions above.

| C | generated/libibverbs | man page |
|---|---|---|
%s
`, release.Name, len(objects)+len(lines), len(objects), strings.Join(objects, "\n"), len(lines),
		strings.Join(lines, "\n"))
	if other := others(release.Headers[i].Funcs, where); len(other) > 0 {
		fmt.Fprintf(&b,
			"\n## Functions of other headers that package rdma and its vendors' packages call\n\n| C | rdma |\n"+
				"|---|---|\n%s\n",
			strings.Join(other, "\n"))
	}
	return b.String(), nil
}

// others returns rows for functions of other headers.
func others(funcs []model.Func, where map[string][]string) (rows []string) {
	for _, c := range slices.Sorted(maps.Keys(where)) {
		if !slices.ContainsFunc(funcs, func(f model.Func) bool { return f.Name == c }) {
			rows = append(rows, fmt.Sprintf("| %s | %s |", c, code(where[c])))
		}
	}
	return rows
}

func code(names []string) string {
	return "`" + strings.Join(names, "`, `") + "`"
}

// Pages returns the generated pages by file name in docs.
func Pages(root string) (map[string]string, error) {
	verbs, err := Page(root)
	if err != nil {
		return nil, err
	}
	rpma, err := RPMAPage(root)
	return map[string]string{"verbs.md": verbs, "rpma.md": rpma}, err
}

// Write writes the pages.
func Write(root string) error {
	pages, err := Pages(root)
	if err != nil {
		return err
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(root, "docs", name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}
