// SPDX-License-Identifier: BSD-2-Clause

// Package locks reads what comments say about locks and checks that the code keeps it.
//
//	mu sync.Mutex // guards what follows     the fields behind it, up to the next lock that guards some,
//	                                         or "guards what follows, up to ready"
//	plain bool // guarded by mu              a field anywhere: by a lock of its structure, or of a part of it,
//	                                         or "guarded by Fabric.mu"
//	// The caller holds mu.                  of a method: the lock of its receiver
//	// The caller holds Fabric.mu.           of any function or method of an interface: the lock of that type,
//	                                         which may be in another package
//	// It takes Fabric.mu.                   of a function: it takes the lock before it does anything that needs
//	                                         it, and no caller may hold it
//	// It takes Fabric.mu for its caller.    of a function: behind a call of it the lock is held
//	// It needs no lock: REASON              of a function, also inside: the object is new, or no call is under way
//
// A function needs a lock if its comment says so, if it uses a field that the lock guards, or if it calls a function
// that needs the lock, unless it takes the lock before that. Before means earlier in the text, and the lock counts as
// held up to the function's end; where the function unlocks, it is trusted. Functions that only the package can call
// may need locks without a word. What others call has to say so: exported functions and methods, functions that are
// used as values, and methods of interfaces; what these say, they say for the methods of all types that have them. What
// go starts may need no lock.
//
// Locks are told apart by type and field, not by object: while the lock of one object is held, the fields of another
// object of its type are not checked. Function literals belong to the function that they stand in, because most of them
// run before it returns or under the lock that it holds. Fields of package sync guard themselves, and an object that a
// composite literal in the same function makes needs no lock.
package locks

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

var (
	guards    = regexp.MustCompile(`guards what follows(?:, up to (\w+))?`)
	guardedBy = regexp.MustCompile(`[Gg]uarded by ((?:\w+\.)?\w+)\b`)
	holds     = regexp.MustCompile(`[Tt]he caller holds ((?:\w+\.)?\w+(?: and (?:\w+\.)?\w+)?)\b`)
	gives     = regexp.MustCompile(`[Tt]akes (\w+\.\w+) for its caller`)
	takes     = regexp.MustCompile(`It takes (\w+\.\w+)(?: and (\w+\.\w+))?\.`)
	alone     = regexp.MustCompile(`It needs no lock: \w+`)
)

// lock is the class of a lock: a field of a type. The variables are those of the declarations.
type lock = *types.Var

// checker is the state of one check.
type checker struct {
	fset       *token.FileSet
	names      map[lock]string        // Fabric.mu
	guarded    map[*types.Var]lock    // by field
	byName     map[string]lock        // Fabric.mu → lock, for comments
	says       map[*types.Func][]lock // the caller holds
	takes      map[*types.Func][]lock // it takes
	gives      map[*types.Func][]lock // it takes for its caller
	uses       map[*types.Func][]use
	needs      map[*types.Func]map[lock]string // and why
	comments   map[*token.File][]*ast.CommentGroup
	interfaces []*types.Named
	read       map[lock]bool // that comments speak of
	wrong      []string
}

// use is a place in a function that may need a lock.
type use struct {
	at     token.Pos
	guard  lock          // of a field that is used, or nil
	called *types.Func   // or what is called
	value  bool          // it is not called, but used as a value
	spawn  bool          // it is started by go
	held   map[lock]bool // what the function took before
}

// Check reads the packages that patterns name and returns what is wrong, in order, and the names of the locks that
// comments speak of.
func Check(dir string, patterns ...string) (wrong, locks []string, err error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo,
		Dir: dir,
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}, patterns...)
	if err != nil {
		return nil, nil, err
	}
	c := &checker{
		names: map[lock]string{}, guarded: map[*types.Var]lock{}, byName: map[string]lock{},
		says: map[*types.Func][]lock{}, takes: map[*types.Func][]lock{}, gives: map[*types.Func][]lock{},
		uses: map[*types.Func][]use{}, needs: map[*types.Func]map[lock]string{},
		comments: map[*token.File][]*ast.CommentGroup{}, read: map[lock]bool{},
	}
	everyFile := func(see func(*types.Info, *ast.File)) {
		for _, p := range loaded {
			for _, f := range p.Syntax {
				see(p.TypesInfo, f)
			}
		}
	}
	for _, p := range loaded {
		for _, e := range p.Errors {
			return nil, nil, e
		}
		c.fset = p.Fset
	}
	everyFile(c.readLocks)
	everyFile(c.readTypes)
	everyFile(func(info *types.Info, f *ast.File) {
		c.comments[c.fset.File(f.FileStart)] = f.Comments
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				c.readComment(info, d.Name, d.Doc)
			}
		}
	})
	for f := range maps.Clone(c.says) { // a method says what the methods of interfaces say that it stands for
		for _, m := range c.calledThrough(f) {
			c.says[f] = append(c.says[f], c.says[m]...)
		}
	}
	everyFile(func(info *types.Info, f *ast.File) {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				c.readBody(info, d)
			}
		}
	})
	c.infer()
	c.judge()
	for l := range c.read {
		locks = append(locks, c.names[l])
	}
	slices.Sort(locks)
	slices.Sort(c.wrong)
	return slices.Compact(c.wrong), locks, nil
}

// readBody compares a function's body with what it and the functions that it calls say.
func (c *checker) readBody(info *types.Info, d *ast.FuncDecl) {
	for _, group := range c.comments[c.fset.File(d.Pos())] {
		if d.Pos() <= group.Pos() && group.End() <= d.End() || group == d.Doc {
			if alone.MatchString(strings.ReplaceAll(group.Text(), "\n", " ")) {
				return
			}
		}
	}
	object, _ := info.Defs[d.Name].(*types.Func)
	held := map[lock]bool{}
	fresh := map[types.Object]bool{}    // objects that a literal makes here
	called := map[*ast.Ident]bool{}     // names of functions that are called
	spawned := map[*ast.CallExpr]bool{} // by go
	add := func(u use) {
		u.held = maps.Clone(held)
		c.uses[object] = append(c.uses[object], u)
	}
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			spawned[n.Call] = true
		case *ast.CallExpr:
			if selector, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr); ok && takesLock(selector.Sel.Name) {
				if v := lastField(info, selector.X); v != nil {
					held[v] = true
				}
			}
			if id := named(n.Fun); id != nil {
				called[id] = true
				if g, ok := info.Uses[id].(*types.Func); ok {
					add(use{at: n.Pos(), called: g.Origin(), spawn: spawned[n]})
					for _, l := range c.gives[g.Origin()] {
						held[l] = true
					}
				}
			}
		case *ast.AssignStmt:
			for i, right := range n.Rhs {
				if u, ok := right.(*ast.UnaryExpr); ok && u.Op == token.AND {
					right = u.X
				}
				if _, ok := right.(*ast.CompositeLit); ok && i < len(n.Lhs) {
					if id, ok := n.Lhs[i].(*ast.Ident); ok {
						fresh[info.ObjectOf(id)] = true
					}
				}
			}
		case *ast.SelectorExpr:
			if v, ok := info.Uses[n.Sel].(*types.Var); ok && c.guarded[v.Origin()] != nil {
				if id, ok := ast.Unparen(n.X).(*ast.Ident); !ok || !fresh[info.ObjectOf(id)] {
					add(use{at: n.Sel.Pos(), guard: c.guarded[v.Origin()]})
				}
			}
		case *ast.Ident:
			if g, ok := info.Uses[n].(*types.Func); ok && !called[n] {
				add(use{at: n.Pos(), called: g.Origin(), value: true})
			}
		}
		return true
	})
	for _, l := range c.takes[object] {
		if !held[l] {
			c.complain(d.Pos(), "%s says that it takes %s, and does not", d.Name.Name, c.names[l])
		}
	}
}

// infer finds what each function needs, until nothing is new.
func (c *checker) infer() {
	for f, says := range c.says {
		for _, l := range says {
			c.need(f, l, "it says so")
		}
	}
	for again := true; again; {
		again = false
		for f, uses := range c.uses {
			for _, u := range uses {
				for l, why := range c.usedLocks(u) {
					if !u.held[l] && !u.spawn && !u.value && c.need(f, l, c.place(u.at)+" "+why) {
						again = true
					}
				}
			}
		}
	}
}

// need notes that a function needs a lock, and says whether that is news.
func (c *checker) need(f *types.Func, l lock, why string) bool {
	if c.needs[f][l] != "" {
		return false
	}
	if c.needs[f] == nil {
		c.needs[f] = map[lock]string{}
	}
	c.needs[f][l] = why
	return true
}

// usedLocks are those that a use needs, and why.
func (c *checker) usedLocks(u use) map[lock]string {
	if u.guard != nil {
		return map[lock]string{u.guard: "uses what it guards"}
	}
	all := map[lock]string{}
	for l := range c.needs[u.called] {
		all[l] = "calls " + u.called.Name()
	}
	return all
}

// judge finds what needs a lock where nobody can see that, and what takes a lock that its caller holds.
func (c *checker) judge() {
	silent := func(f *types.Func, l lock) bool { return !slices.Contains(c.says[f], l) }
	for f, needs := range c.needs {
		for l, why := range needs {
			if f.Exported() && silent(f, l) && !isInterface(f) {
				c.complain(f.Pos(), "%s neither takes %s nor says that its caller holds it: %s",
					f.Name(), c.names[l], why)
			}
			for _, m := range c.calledThrough(f) {
				if silent(m, l) {
					c.complain(m.Pos(), "%s of an interface does not say that its caller holds %s: %s %s",
						m.Name(), c.names[l], c.place(f.Pos()), why)
				}
			}
		}
	}
	for f, uses := range c.uses {
		for _, u := range uses {
			for l, why := range c.needs[u.called] {
				if u.spawn {
					c.complain(u.at, "%s starts %s, which needs %s: %s", f.Name(), u.called.Name(), c.names[l], why)
				} else if u.value && !u.held[l] && silent(u.called, l) {
					c.complain(u.at, "%s is used as a value, and does not say that its caller holds %s: %s",
						u.called.Name(), c.names[l], why)
				}
			}
			for _, l := range c.takes[u.called] {
				if why := c.needs[f][l]; why != "" && !u.spawn && !u.value {
					c.complain(u.at, "%s calls %s, which takes %s, and its caller holds it: %s",
						f.Name(), u.called.Name(), c.names[l], why)
				}
			}
		}
	}
}

func isInterface(f *types.Func) bool {
	r := f.Signature().Recv()
	return r != nil && types.IsInterface(r.Type())
}

// calledThrough returns the methods of interfaces that stand for a method of a type.
func (c *checker) calledThrough(f *types.Func) (all []*types.Func) {
	r := f.Signature().Recv()
	if r == nil || isInterface(f) {
		return nil
	}
	of := r.Type()
	if _, ok := of.(*types.Pointer); !ok {
		of = types.NewPointer(of)
	}
	for _, named := range c.interfaces {
		i := named.Underlying().(*types.Interface)
		m, _, _ := types.LookupFieldOrMethod(named, false, f.Pkg(), f.Name())
		if m, ok := m.(*types.Func); ok && types.Implements(of, i) {
			all = append(all, m)
		}
	}
	return all
}

func (c *checker) place(pos token.Pos) string {
	at := c.fset.Position(pos)
	return fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line)
}

func takesLock(method string) bool {
	return method == "Lock" || method == "RLock" || method == "TryLock"
}

// named is the identifier of a function that is called by its name, or nil.
func named(fun ast.Expr) *ast.Ident {
	switch fun := ast.Unparen(fun).(type) {
	case *ast.Ident:
		return fun
	case *ast.SelectorExpr:
		return fun.Sel
	case *ast.IndexExpr:
		return named(fun.X)
	}
	return nil
}

// lastField is the field that an expression ends in.
func lastField(info *types.Info, e ast.Expr) *types.Var {
	if s, ok := ast.Unparen(e).(*ast.SelectorExpr); ok {
		if v, ok := info.Uses[s.Sel].(*types.Var); ok && v.IsField() {
			return v.Origin()
		}
	}
	return nil
}

func (c *checker) complain(pos token.Pos, format string, args ...any) {
	c.wrong = append(c.wrong, c.place(pos)+": "+fmt.Sprintf(format, args...))
}
