// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
)

const softRoom = module + "/rdma/soft"

// softPackages are the packages of the software device, with types.
func softPackages(t *testing.T) map[string]*packages.Package {
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo,
		Dir: "../..",
		Env: append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0"),
	}, "./rdma/soft/...")
	require.NoError(t, err)
	named := map[string]*packages.Package{}
	for _, p := range all {
		require.Empty(t, p.Errors)
		named[strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, softRoom), "/")] = p
	}
	return named
}

// responder are the files that take messages: they know of the sender what the message says.
var responder = []string{"responder.go", "receive.go", "tag.go", "datagram.go"}

// takesQueuePair says whether a parameter of a function is a queue pair. The receiver is none.
func takesQueuePair(f *types.Func) bool {
	for p := range f.Signature().Params().Variables() {
		if at, ok := p.Type().(*types.Pointer); ok {
			if n, ok := at.Elem().(*types.Named); ok && n.Obj().Name() == "qp" {
				return true
			}
		}
	}
	return false
}

// TestResponder checks that no function that takes a message is given a queue pair beside its own: what it knows about
// the sender is in the message.
func TestResponder(t *testing.T) {
	p := softPackages(t)["internal/device"]
	require.NotNil(t, p)
	seen, finds := map[string]int{}, 0
	for _, f := range p.Syntax {
		name := filepath.Base(p.Fset.Position(f.FileStart).Filename)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			takes := takesQueuePair(p.TypesInfo.Defs[fn.Name].(*types.Func))
			if takes {
				finds++
			}
			if slices.Contains(responder, name) {
				seen[name]++
				assert.False(t, takes, "%v: %s takes a queue pair", p.Fset.Position(fn.Pos()), fn.Name.Name)
			}
		}
	}
	assert.Len(t, seen, len(responder), "files that are there: %v", seen)
	assert.Positive(t, finds, "the check finds functions elsewhere that do")
}

// isValue says why a type is more than a value, or "".
func isValue(of types.Type, path string) string {
	switch u := of.Underlying().(type) {
	case *types.Basic:
		if u.Kind() == types.UnsafePointer {
			return path + " is a pointer"
		}
		return ""
	case *types.Array:
		return isValue(u.Elem(), path+"[]")
	case *types.Slice:
		return isValue(u.Elem(), path+"[]")
	case *types.Struct:
		if n, ok := of.(*types.Named); ok && n.Obj().Pkg() != nil && !strings.HasPrefix(n.Obj().Pkg().Path(), module) {
			return "" // netip.AddrPort and its like
		}
		for i := range u.NumFields() {
			if why := isValue(u.Field(i).Type(), path+"."+u.Field(i).Name()); why != "" {
				return why
			}
		}
		return ""
	}
	return fmt.Sprintf("%s is a %v", path, of)
}

// TestMessages checks that requests, answers and management datagrams are values, without a pointer to an object of
// either side.
func TestMessages(t *testing.T) {
	p := softPackages(t)["internal/message"]
	require.NotNil(t, p)
	for _, name := range []string{"Request", "Answer", "MAD"} {
		o := p.Types.Scope().Lookup(name)
		require.NotNil(t, o, name)
		assert.Empty(t, isValue(o.Type(), name))
	}
	device := softPackages(t)["internal/device"].Types.Scope().Lookup("completion") // the check itself can fail
	require.NotNil(t, device)
	assert.NotEmpty(t, isValue(device.Type(), "completion"))
}

// takesRegisters are the places of a package where the registers of a call are decoded: functions that take a []uint64,
// and expressions that look into an abi.Args. Calls of the data path are slots, which take numbers.
func takesRegisters(p *packages.Package) (at []string) {
	found := func(n ast.Node) { at = append(at, p.Fset.Position(n.Pos()).String()) }
	for _, f := range p.Syntax {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncType:
				for _, field := range n.Params.List {
					if types.Identical(p.TypesInfo.TypeOf(field.Type), types.NewSlice(types.Typ[types.Uint64])) {
						found(n)
					}
				}
			case *ast.IndexExpr:
				if of, ok := p.TypesInfo.TypeOf(n.X).(*types.Named); ok && of.Obj().Name() == "Args" {
					found(n)
				}
			}
			return true
		})
	}
	return at
}

// TestRegisters checks that the functions of the device and its connection manager have Go types: internal/abi alone
// decodes registers.
func TestRegisters(t *testing.T) {
	all := softPackages(t)
	for _, room := range []string{"internal/device", "internal/cm", "internal/rate"} {
		require.NotNil(t, all[room], room)
		assert.Empty(t, takesRegisters(all[room]))
	}
	assert.Greater(t, len(takesRegisters(all["internal/abi"])), 30, "the check finds them where they are")
}

// TestFaultsStandInTwoPlaces checks that a field that says what goes wrong is named only where programs set it, and in
// the wire that does it.
func TestFaultsStandInTwoPlaces(t *testing.T) {
	named := map[string]int{}
	all := softPackages(t)
	faults := map[types.Object]bool{}
	for _, room := range []string{"", "internal/wire/faulty"} {
		require.NotNil(t, all[room], room)
		o := all[room].Types.Scope().Lookup("Faults")
		require.NotNil(t, o, room)
		fields := o.Type().Underlying().(*types.Struct)
		for i := range fields.NumFields() {
			faults[fields.Field(i)] = true
		}
	}
	for room, p := range all {
		for _, f := range p.Syntax {
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && (faults[p.TypesInfo.Uses[id]] || faults[p.TypesInfo.Defs[id]]) {
					named[room+"/"+filepath.Base(p.Fset.Position(f.FileStart).Filename)]++
				}
				return true
			})
		}
	}
	assert.Equal(t, []string{"/faults.go", "internal/wire/faulty/faulty.go"}, slices.Sorted(maps.Keys(named)))
	for room, p := range all { // nor has another package a copy of them
		if o := p.Types.Scope().Lookup("Faults"); o != nil && room != "" && room != "internal/wire/faulty" {
			assert.True(t, o.(*types.TypeName).IsAlias(), "%s has faults of its own", p.PkgPath)
		}
	}
}
