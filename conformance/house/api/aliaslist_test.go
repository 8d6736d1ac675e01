// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// comments are the doc comments, and those at the end of a line, of fields and methods, by the place of the name.
type comments map[token.Pos]struct{ doc, line []string }

// commentsOf reads the comments of packages of ours and what they import.
func commentsOf(all []*packages.Package) comments {
	c := make(comments)
	packages.Visit(all, nil, func(p *packages.Package) {
		if !strings.HasPrefix(p.PkgPath, module) {
			return
		}
		for _, file := range p.Syntax {
			ast.Inspect(file, func(node ast.Node) bool {
				switch n := node.(type) {
				case *ast.StructType:
					c.fields(file, n)
				case *ast.InterfaceType:
					for _, f := range n.Methods.List {
						c.add(f.Doc, f.Comment, f.Names...)
					}
				case *ast.FuncDecl:
					c.add(n.Doc, nil, n.Name)
				}
				return true
			})
		}
	})
	return c
}

// fields reads the comments of a structure, also those that stand for themselves before a field.
func (c comments) fields(file *ast.File, s *ast.StructType) {
	from := s.Fields.Opening
	for _, f := range s.Fields.List {
		c.add(f.Doc, f.Comment, f.Names...)
		for _, group := range file.Comments {
			if len(f.Names) > 0 && group != f.Doc && from < group.Pos() && group.End() < f.Pos() {
				own := c[f.Names[0].Pos()]
				own.doc = append(append(lines(group), ""), own.doc...)
				c[f.Names[0].Pos()] = own
			}
		}
		if from = f.End(); f.Comment != nil {
			from = f.Comment.End()
		}
	}
}

func (c comments) add(doc, line *ast.CommentGroup, names ...*ast.Ident) {
	for i, name := range names {
		own := c[name.Pos()]
		if own.line = lines(line); i == 0 {
			own.doc = lines(doc)
		}
		c[name.Pos()] = own
	}
}

func lines(group *ast.CommentGroup) (all []string) {
	if group != nil {
		for _, line := range group.List {
			all = append(all, line.Text)
		}
	}
	return all
}

// has lists the exported fields and methods of a type as lines of a comment, in the order in which they are declared:
// fields with their comments, methods with the first sentence of theirs.
func has(fset *token.FileSet, written comments, named *types.Named) string {
	qualify := func(p *types.Package) string {
		if strings.Contains(p.Path(), "/internal/") { // its types have aliases of the same names
			return ""
		}
		return p.Name()
	}
	var fields, methods strings.Builder
	if s, ok := named.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			if f.Exported() {
				own := written[f.Pos()]
				for i, paragraph := range strings.Split(plain(own.doc), "\n\n") {
					if i > 0 {
						fmt.Fprintln(&fields)
					}
					fmt.Fprint(&fields, wrap(paragraph))
				}
				fmt.Fprintln(&fields, f.Name(), types.TypeString(f.Type(), qualify), strings.Join(own.line, " "))
			}
		}
	}
	for _, m := range methodsOf(fset, named) {
		fmt.Fprint(&methods, wrap(new(doc.Package).Synopsis(plain(written[m.Pos()].doc))))
		signature := types.TypeString(m.Signature(), qualify)
		fmt.Fprintln(&methods, m.Name()+strings.TrimPrefix(signature, "func"))
	}
	var s strings.Builder
	if fields.Len() > 0 {
		fmt.Fprintf(&s, "//\n// Fields:\n//\n%s", block("struct", fields.String()))
	}
	if methods.Len() > 0 {
		fmt.Fprintf(&s, "//\n// Methods, whose whole documentation go doc %s.%s has:\n//\n%s",
			strings.TrimPrefix(named.Obj().Pkg().Path(), module), named.Obj().Name(),
			block("interface", methods.String()))
	}
	return strings.TrimSuffix(s.String(), "\n")
}

// methodsOf are the exported methods in the order of the source.
func methodsOf(fset *token.FileSet, named *types.Named) (found []*types.Func) {
	set := types.NewMethodSet(types.NewPointer(named))
	if types.IsInterface(named) {
		set = types.NewMethodSet(named)
	}
	for m := range set.Methods() {
		if m.Obj().Exported() {
			found = append(found, m.Obj().(*types.Func))
		}
	}
	slices.SortFunc(found, func(a, b *types.Func) int {
		at, of := fset.Position(a.Pos()), fset.Position(b.Pos())
		return cmp.Or(cmp.Compare(at.Filename, of.Filename), cmp.Compare(at.Line, of.Line))
	})
	return found
}

// plain is a comment without the slashes.
func plain(comment []string) string {
	var text []string
	for _, line := range comment {
		text = append(text, strings.TrimPrefix(strings.TrimPrefix(line, "//"), " "))
	}
	return strings.Join(text, "\n")
}

// wrap makes comment lines of a paragraph, which fit into a block of a comment.
func wrap(paragraph string) string {
	const width = 120 - len("//    // ")
	var s strings.Builder
	line := ""
	flush := func() {
		if line != "" {
			s.WriteString("// " + line + "\n")
		}
		line = ""
	}
	for _, word := range strings.Fields(paragraph) {
		if len(line)+1+len(word) > width {
			flush()
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	flush()
	return s.String()
}

// block is the body of a declaration as gofmt writes it, as lines of a comment.
func block(kind, body string) string {
	source, err := format.Source([]byte("package p\n\ntype t " + kind + " {\n" + body + "}\n"))
	if err != nil {
		panic(fmt.Sprintf("%v: %s", err, body))
	}
	_, inner, _ := strings.Cut(string(source), "{\n")
	inner = strings.TrimSuffix(inner, "}\n")
	var s strings.Builder
	for line := range strings.Lines(inner) {
		s.WriteString(strings.TrimRight("//\t"+strings.TrimPrefix(line, "\t"), "\t\n") + "\n")
	}
	return s.String()
}
