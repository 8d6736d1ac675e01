// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/hnsdv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/ionicdv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/generated/libhns"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libionic"
	"github.com/goverbs/goverbs/generated/libmana"
	"github.com/goverbs/goverbs/generated/libmlx4"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/manadv"
	"github.com/goverbs/goverbs/generated/mlx4dv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

var update = flag.Bool("update", false, "write functions_test.go")

// tables are the functions of the headers in the Go packages.
var tables = [][]ibv.Function{ibv.Functions, rdmacm.Functions, mlx5dv.Functions, mlx4dv.Functions, efadv.Functions,
	hnsdv.Functions, manadv.Functions, ionicdv.Functions}

var libraries = []*runtime.Library{libibverbs.Library, librdmacm.Library, libmlx5.Library, libmlx4.Library,
	libefa.Library, libhns.Library, libmana.Library, libionic.Library}

var documented = regexp.MustCompile(`(?m)^C: [^(]*?(\w+)\(`)

// readFunctions generates the table of C names and Go functions from comments of the generated packages.
func readFunctions(t *testing.T) []byte {
	var imports, rows []string
	for _, library := range libraries {
		imports = append(imports, fmt.Sprintf("\t\"github.com/goverbs/goverbs/generated/%s\"\n", library.Name))
		sources, err := filepath.Glob("../../generated/" + library.Name + "/*.go")
		require.NoError(t, err)
		for _, source := range sources {
			file, err := parser.ParseFile(token.NewFileSet(), source, nil,
				parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Recv != nil || !f.Name.IsExported() {
					continue
				}
				name := documented.FindStringSubmatch(f.Doc.Text())
				require.NotNil(t, name, "%s: the comment of %s does not name its C function", source, f.Name)
				rows = append(rows, fmt.Sprintf("\t%q: %s.%s,\n", name[1], library.Name, f.Name))
			}
		}
	}
	slices.Sort(imports)
	slices.Sort(rows)
	text := fmt.Sprintf("// SPDX-License-Identifier: BSD-2-Clause\n\npackage stub\n\nimport (\n%s)\n\n"+
		"// goFunctions maps C names to Go functions. go "+
		"test -update writes this file.\nvar goFunctions = map[string]any{\n%s}\n",
		strings.Join(imports, ""), strings.Join(rows, ""))
	formatted, err := format.Source([]byte(text))
	require.NoError(t, err)
	return formatted
}

// TestFunctionTable checks that functions_test.go has every function of the generated packages.
func TestFunctionTable(t *testing.T) {
	want := readFunctions(t)
	if *update {
		require.NoError(t, os.WriteFile("functions_test.go", want, 0o644))
		t.Skip("functions_test.go was written: run the tests again, without -update")
	}
	have, err := os.ReadFile("functions_test.go")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(have), "go test ./conformance/stub -run TestFunctionTable -update writes it")
}
