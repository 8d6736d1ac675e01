// SPDX-License-Identifier: BSD-2-Clause

// Package order puts the files of a package in the order in which they use each other, and finds what runs against it.
// It has two measures.
//
// Calls: a call is a place in a file that calls, or names as a value, a function or method that another file of the
// package declares. A call through an interface, or of a variable that holds a function, does not count: that is how a
// file is kept from knowing another one.
//
// Arrows: an arrow goes from one file to another when the first one names anything that the second one declares: a
// function, a method, a type, a constant or a variable, but no field. However often it does so, there is at most one
// arrow each way.
//
// Test files do not count, nor do files for other systems than linux/amd64.
//
// The order is the one with the fewest calls, or arrows, that run back, from a file to an earlier one: a minimum
// feedback arc set. Files that do not use each other in a circle are never the cause of one, so each circle (strongly
// connected component) is ordered by itself: from a few fixed starts, files are moved to where they are best until no
// move helps, and the best order found is kept. The same source gives the same answer on every machine.
package order

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/tools/go/packages"
)

// Room is a package with its files in order.
type Room struct {
	Path   string // import path
	Files  []string
	Calls  Order
	Arrows Order
}

// Order is the order of a room's files with the fewest uses that run back.
type Order struct {
	Files []string // users first
	All   int      // calls or arrows between the files
	Back  []Use    // those that run back, in the order of the files; of an arrow, its first use
}

// Use is a place that names what another file declares.
type Use struct {
	Position token.Position
	To       string // file that declares it
	Name     string // Close, (*QP).Close
}

// From is the file that uses it.
func (u Use) From() string { return filepath.Base(u.Position.Filename) }

func (u Use) String() string {
	return fmt.Sprintf("%s:%d → %s %s", u.From(), u.Position.Line, u.To, u.Name)
}

// Load reads the packages that patterns name, as the go command takes them in dir, in the order of their import paths.
func Load(dir string, patterns ...string) ([]Room, error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo,
		Dir: dir,
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}, patterns...)
	if err != nil {
		return nil, err
	}
	var rooms []Room
	for _, p := range loaded {
		for _, e := range p.Errors {
			return nil, e
		}
		calls, arrows := uses(p.Fset, p.Types, p.Syntax, p.TypesInfo)
		room := Room{Path: p.PkgPath}
		for _, f := range p.Syntax {
			room.Files = append(room.Files, filepath.Base(p.Fset.Position(f.FileStart).Filename))
		}
		slices.Sort(room.Files)
		room.Calls, room.Arrows = arrange(room.Files, calls), arrange(room.Files, arrows)
		rooms = append(rooms, room)
	}
	slices.SortFunc(rooms, func(a, b Room) int { return cmp.Compare(a.Path, b.Path) })
	return rooms, nil
}

// uses collects the calls and the arrows between the files of a package, in the order of the source.
func uses(fset *token.FileSet, p *types.Package, syntax []*ast.File, info *types.Info) (calls, arrows []Use) {
	seen := map[[2]string]bool{}
	for _, f := range syntax {
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			object := info.Uses[id]
			if object == nil || object.Pkg() != p {
				return true
			}
			name, isFunction := object.Name(), false
			if f, ok := object.(*types.Func); ok {
				receiver := f.Origin().Signature().Recv()
				if receiver != nil {
					if types.IsInterface(receiver.Type()) {
						return true
					}
					unqualified := func(*types.Package) string { return "" }
					name = "(" + types.TypeString(receiver.Type(), unqualified) + ")." + name
				}
				isFunction = true
			} else if object.Parent() != p.Scope() {
				return true
			}
			u := Use{fset.Position(id.Pos()), filepath.Base(fset.Position(object.Pos()).Filename), name}
			if u.To == u.From() {
				return true
			}
			if isFunction {
				calls = append(calls, u)
			}
			if arrow := [2]string{u.From(), u.To}; !seen[arrow] {
				seen[arrow] = true
				arrows = append(arrows, u)
			}
			return true
		})
	}
	return calls, arrows
}

// arrange orders the files of a room.
func arrange(files []string, uses []Use) Order {
	number := map[string]int{}
	for i, f := range files {
		number[f] = i
	}
	g := newGraph(len(files))
	for _, u := range uses {
		g.add(number[u.From()], number[u.To], 1)
	}
	o := Order{All: len(uses)}
	place := map[string]int{}
	for i, n := range g.order() {
		o.Files = append(o.Files, files[n])
		place[files[n]] = i
	}
	for _, u := range uses {
		if place[u.From()] > place[u.To] {
			o.Back = append(o.Back, u)
		}
	}
	slices.SortStableFunc(o.Back, func(a, b Use) int {
		return cmp.Or(cmp.Compare(place[a.From()], place[b.From()]), cmp.Compare(place[a.To], place[b.To]))
	})
	return o
}
