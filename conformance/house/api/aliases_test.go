// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bytes"
	"flag"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
)

var update = flag.Bool("update", false, "write the lists of TestAliasesSayWhatTheyHave into the doc comments")

// TestAliasesSayWhatTheyHave: of a type that is declared in another package, go doc and pkg.go.dev show the alias
// alone. So the alias's comment lists its fields and methods with their documentation, as they are there. -update
// writes the lists.
func TestAliasesSayWhatTheyHave(t *testing.T) {
	const mode = packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps |
		packages.NeedSyntax | packages.NeedFiles
	all, err := packages.Load(&packages.Config{Dir: "../../..", Mode: mode}, "./rdma", "./rdma/cm", "./rdma/soft",
		"./rdma/rdmatest", "./rdma/registration", "./rdma/mlx5", "./rdma/efa", "./rpma", "./runtime")
	require.NoError(t, err)
	n, written := 0, commentsOf(all)
	for _, p := range all {
		require.Empty(t, p.Errors)
		for _, file := range p.Syntax {
			name := p.Fset.Position(file.Package).Filename
			src, err := os.ReadFile(name)
			require.NoError(t, err)
			var out bytes.Buffer
			from := 0
			ast.Inspect(file, func(node ast.Node) bool {
				d, ok := node.(*ast.GenDecl)
				if !ok || d.Tok != token.TYPE {
					return true
				}
				is := p.Types.Scope().Lookup(d.Specs[0].(*ast.TypeSpec).Name.Name)
				if is == nil || !is.Exported() || !is.(*types.TypeName).IsAlias() {
					return false
				}
				named, ok := types.Unalias(is.Type()).(*types.Named)
				if !ok || !strings.HasPrefix(named.Obj().Pkg().Path(), module) {
					return false
				}
				list := has(p.Fset, written, named)
				if list == "" {
					return false
				}
				n++
				begin, end := p.Fset.Position(d.Doc.Pos()).Offset, p.Fset.Position(d.Doc.End()).Offset
				own := string(src[begin:end])
				want := withList(own, list)
				if !*update {
					assert.Equal(t, want, own, "%s.%s: -update mends it", p.Name, is.Name())
				}
				out.Write(src[from:begin])
				out.WriteString(want)
				from = end
				return false
			})
			if out.Write(src[from:]); *update && !bytes.Equal(out.Bytes(), src) {
				require.NoError(t, os.WriteFile(name, out.Bytes(), 0o644))
			}
		}
	}
	assert.Greater(t, n, 15)
}

const module = "github.com/goverbs/goverbs/"

var (
	lists = regexp.MustCompile(`(?m)^//\n// (Fields|Methods)(, whose .*)?:\n//\n((//\n)?//\t.*(\n|$))*`)
	last  = regexp.MustCompile(`(?m)^//\n// (C|Man): `)
)

// withList is a comment with a list, before its lines of C and Man, in place of those that it had.
func withList(comment, list string) string {
	comment = strings.TrimSuffix(lists.ReplaceAllString(comment, ""), "\n")
	if at := last.FindStringIndex(comment); at != nil {
		return comment[:at[0]] + list + "\n" + comment[at[0]:]
	}
	return comment + "\n" + list
}
