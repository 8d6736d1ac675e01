// Package locks reads what comments say of locks, and holds the code to it.
//
//	mu sync.Mutex // guards what follows          the fields behind it, up to the next lock that guards some,
//	                                              or "guards what follows, up to ready"
//	// The caller holds mu.                       of a method: the lock of its receiver, or a variable of its package
//	// The caller holds Fabric.mu.                of any function: the lock of that type, which may be in another package
//	// It takes Fabric.mu for its caller.         of a function: behind a call of it the lock is held
//	// It needs no lock: REASON                   of a function, also inside: the object is new, or no call is under way
//
// A function needs a lock when its comment says so, and where it uses a field that the lock guards or calls a function that needs the lock,
// unless it takes the lock itself before: in the order of the text, up to the function's end; where it unlocks, it is trusted. Functions that
// only the package can call may need locks without a word. What others call has to say so: exported functions and methods, and functions
// that are used as values. What go starts may need none.
//
// Locks are told apart by type and field, not by object: with the lock of one object held, nothing is said about the fields of another one
// of its type. Function literals belong to the function that they stand in, for they mostly run before it returns or under the lock that it
// holds. Fields of package sync guard themselves, and a lock is not needed for an object that a composite literal in the same function makes.
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
	guards = regexp.MustCompile(`guards what follows(?:, up to (\w+))?`)
	holds  = regexp.MustCompile(`[Tt]he caller holds ((?:\w+\.)?\w+(?: and (?:\w+\.)?\w+)?)\b`)
	gives  = regexp.MustCompile(`[Tt]akes (\w+\.\w+) for its caller`)
	alone  = regexp.MustCompile(`It needs no lock: \w+`)
)

// lock is the class of a lock: a field of a type. The variables are those of the declarations.
type lock = *types.Var

// checker is the state of one check.
type checker struct {
	fset     *token.FileSet
	names    map[lock]string        // Fabric.mu
	guarded  map[*types.Var]lock    // field → its lock
	byName   map[string]lock        // Fabric.mu → lock, for comments
	says     map[*types.Func][]lock // the caller holds
	uses     map[*types.Func][]use
	needs    map[*types.Func]map[lock]string // and why
	gives    map[*types.Func][]lock          // takes for its caller
	comments map[*token.File][]*ast.CommentGroup
	guarding int // locks
	wrong    []string
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

// Check reads the packages that patterns name and gives what is wrong, in order. The locks are how many guard something.
func Check(dir string, patterns ...string) (wrong []string, locks int, err error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo,
		Dir: dir,
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}, patterns...)
	if err != nil {
		return nil, 0, err
	}
	c := &checker{
		names: map[lock]string{}, guarded: map[*types.Var]lock{}, byName: map[string]lock{}, says: map[*types.Func][]lock{},
		comments: map[*token.File][]*ast.CommentGroup{}, gives: map[*types.Func][]lock{}, uses: map[*types.Func][]use{}, needs: map[*types.Func]map[lock]string{},
	}
	for _, p := range loaded {
		for _, e := range p.Errors {
			return nil, 0, e
		}
		c.fset = p.Fset
		for _, f := range p.Syntax {
			c.readTypes(p.TypesInfo, f)
			c.comments[c.fset.File(f.FileStart)] = f.Comments
		}
	}
	for _, read := range []func(*types.Info, *ast.FuncDecl){c.readComment, c.readBody} {
		for _, p := range loaded {
			for _, f := range p.Syntax {
				for _, d := range f.Decls {
					if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
						read(p.TypesInfo, d)
					}
				}
			}
		}
	}
	c.infer()
	c.judge()
	slices.Sort(c.wrong)
	return slices.Compact(c.wrong), c.guarding, nil
}

// isLock says whether a field can be a lock: it has Lock and Unlock.
func isLock(v *types.Var) bool {
	has := func(name string) bool {
		m, _, _ := types.LookupFieldOrMethod(types.NewPointer(v.Type()), true, v.Pkg(), name)
		_, ok := m.(*types.Func)
		return ok
	}
	return has("Lock") && has("Unlock")
}

// readTypes finds the locks of a file's structures and what they guard.
func (c *checker) readTypes(info *types.Info, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		var by lock
		last := ""
		for _, field := range s.Fields.List {
			for _, name := range field.Names {
				v, ok := info.Defs[name].(*types.Var)
				switch {
				case !ok:
				case isLock(v):
					c.names[v] = spec.Name.Name + "." + name.Name
					c.byName[c.names[v]], c.byName[v.Pkg().Path()+" "+c.names[v]] = v, v
					if found := guards.FindStringSubmatch(field.Comment.Text() + field.Doc.Text()); found != nil {
						by, last = v, found[1]
						c.guarding++
					}
				case by != nil && !strings.HasPrefix(types.TypeString(v.Type(), nil), "sync"): // sync.Cond, sync/atomic
					c.guarded[v] = by
				}
				if name.Name == last {
					by = nil
				}
			}
		}
		return true
	})
}

// readComment finds what a function says that its caller holds.
func (c *checker) readComment(info *types.Info, d *ast.FuncDecl) {
	object, ok := info.Defs[d.Name].(*types.Func)
	if !ok {
		return
	}
	doc := strings.ReplaceAll(d.Doc.Text(), "\n", " ")
	for _, found := range gives.FindAllStringSubmatch(doc, -1) {
		if l := c.lock(object, found[1]); l != nil {
			c.gives[object] = append(c.gives[object], l)
		}
	}
	for _, found := range holds.FindAllStringSubmatch(doc, -1) {
		for _, name := range strings.Split(found[1], " and ") {
			if r := object.Signature().Recv(); r != nil && !strings.Contains(name, ".") {
				name = typeName(r.Type()) + "." + name
			}
			if l := c.lock(object, name); l != nil {
				c.says[object] = append(c.says[object], l)
			}
		}
	}
}

// lock is the one that a function's comment names, of its own package or else of another one.
func (c *checker) lock(f *types.Func, name string) lock {
	if l := c.byName[f.Pkg().Path()+" "+name]; l != nil {
		return l
	}
	return c.byName[name]
}

// readBody holds a function to what it and those that it calls say.
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

// judge tells of what needs a lock where nobody can see that.
func (c *checker) judge() {
	silent := func(f *types.Func, l lock) bool { return !slices.Contains(c.says[f], l) }
	for f, needs := range c.needs {
		for l, why := range needs {
			if f.Exported() && silent(f, l) {
				c.complain(f.Pos(), "%s neither takes %s nor says that its caller holds it: %s", f.Name(), c.names[l], why)
			}
		}
	}
	for f, uses := range c.uses {
		for _, u := range uses {
			for l, why := range c.needs[u.called] {
				if u.spawn {
					c.complain(u.at, "%s starts %s, which needs %s: %s", f.Name(), u.called.Name(), c.names[l], why)
				} else if u.value && !u.held[l] && silent(u.called, l) {
					c.complain(u.at, "%s is used as a value, and does not say that its caller holds %s: %s", u.called.Name(), c.names[l], why)
				}
			}
		}
	}
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

func typeName(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}

func (c *checker) complain(pos token.Pos, format string, args ...any) {
	c.wrong = append(c.wrong, c.place(pos)+": "+fmt.Sprintf(format, args...))
}
