// SPDX-License-Identifier: BSD-2-Clause

package locks

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"strings"
)

// isLock says whether a field can be a lock: it has Lock and Unlock.
func isLock(v *types.Var) bool {
	has := func(name string) bool {
		m, _, _ := types.LookupFieldOrMethod(types.NewPointer(v.Type()), true, v.Pkg(), name)
		_, ok := m.(*types.Func)
		return ok
	}
	return has("Lock") && has("Unlock")
}

// structs calls see for every structure of a file that has a name.
func structs(f *ast.File, see func(*ast.TypeSpec, *ast.StructType)) {
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				see(spec, s)
			}
		}
		return true
	})
}

// readLocks finds the locks of a file's structures.
func (c *checker) readLocks(info *types.Info, f *ast.File) {
	structs(f, func(spec *ast.TypeSpec, s *ast.StructType) {
		for _, field := range s.Fields.List {
			for _, name := range field.Names {
				if v, ok := info.Defs[name].(*types.Var); ok && isLock(v) {
					c.names[v] = spec.Name.Name + "." + name.Name
					c.byName[c.names[v]], c.byName[v.Pkg().Path()+" "+c.names[v]] = v, v
				}
			}
		}
	})
}

// readTypes finds what the locks guard, and what methods of interfaces say.
func (c *checker) readTypes(info *types.Info, f *ast.File) {
	structs(f, func(spec *ast.TypeSpec, s *ast.StructType) {
		var by lock
		last := ""
		for _, field := range s.Fields.List {
			text := strings.ReplaceAll(field.Doc.Text()+" "+field.Comment.Text(), "\n", " ")
			for _, name := range field.Names {
				v, ok := info.Defs[name].(*types.Var)
				switch {
				case !ok:
				case isLock(v):
					if found := guards.FindStringSubmatch(text); found != nil {
						by, last = v, found[1]
						c.read[v] = true
					}
				case by != nil && !strings.HasPrefix(types.TypeString(v.Type(), nil), "sync"): // sync.Cond, sync/atomic
					c.guarded[v] = by
				}
				if found := guardedBy.FindStringSubmatch(text); ok && found != nil {
					if l := c.lock(v.Pos(), v.Pkg(), info.TypeOf(spec.Name), found[1]); l != nil {
						c.guarded[v] = l
					}
				}
				if name.Name == last {
					by, last = nil, ""
				}
			}
		}
		if last != "" {
			c.complain(spec.Pos(), "%s guards what follows up to %s, which does not follow", c.names[by], last)
		}
	})
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		i, ok := spec.Type.(*ast.InterfaceType)
		if !ok {
			return true
		}
		if named, ok := info.TypeOf(spec.Name).(*types.Named); ok && named.TypeParams().Len() == 0 {
			c.interfaces = append(c.interfaces, named)
		}
		for _, m := range i.Methods.List {
			for _, name := range m.Names {
				c.readComment(info, name, m.Doc)
			}
		}
		return true
	})
}

// readComment finds what a function says about locks.
func (c *checker) readComment(info *types.Info, name *ast.Ident, comment *ast.CommentGroup) {
	f, ok := info.Defs[name].(*types.Func)
	if !ok {
		return
	}
	doc := strings.ReplaceAll(comment.Text(), "\n", " ")
	var receiver types.Type
	if r := f.Signature().Recv(); r != nil {
		receiver = r.Type()
	}
	find := func(expression *regexp.Regexp) (found []lock) {
		for _, match := range expression.FindAllStringSubmatch(doc, -1) {
			for _, names := range match[1:] {
				for name := range strings.SplitSeq(names, " and ") {
					if l := c.lock(f.Pos(), f.Pkg(), receiver, name); l != nil {
						found = append(found, l)
					}
				}
			}
		}
		return found
	}
	c.says[f], c.takes[f], c.gives[f] = append(c.says[f], find(holds)...), find(takes), find(gives)
}

// lock finds the lock that a comment names: a field of a type, or with a dot a lock of that type, in the package or
// else in another one. Words without a dot that are no lock are no names.
func (c *checker) lock(at token.Pos, p *types.Package, of types.Type, name string) (l lock) {
	switch {
	case name == "":
		return nil
	case !strings.Contains(name, "."):
		if of == nil {
			return nil
		}
		field, _, _ := types.LookupFieldOrMethod(of, true, p, name)
		v, ok := field.(*types.Var)
		if !ok || c.names[v.Origin()] == "" {
			return nil
		}
		l = v.Origin()
	default:
		if l = c.byName[p.Path()+" "+name]; l == nil {
			l = c.byName[name]
		}
		if l == nil {
			c.complain(at, "there is no lock %s", name)
			return nil
		}
	}
	c.read[l] = true
	return l
}
