// SPDX-License-Identifier: BSD-2-Clause

// Package house tests the rules of ARCHITECTURE.md for the packages of this module: allowed imports and the targets on
// which each package compiles.
package house

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
)

const module = "github.com/goverbs/goverbs"

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

func list(t *testing.T, patterns ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps"}, patterns...)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "GOOS=linux") // elsewhere, packages import less
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var one listed
		if err := dec.Decode(&one); err == io.EOF {
			return all
		} else {
			require.NoError(t, err)
		}
		all = append(all, one)
	}
}

// room is the part of an import path behind the module: "gen/parse"; false for a foreign one.
func room(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module+"/")
	return rest, ok
}

func under(path string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
}

// nouns are the packages of types and tables, as gen/rules has them.
var nouns = func() (all []string) {
	for _, p := range rules.Packages {
		all = append(all, "generated/"+p.Name)
	}
	return all
}()

// verbs are the packages of functions.
var verbs = func() (all []string) {
	for _, p := range rules.Calling() {
		all = append(all, "generated/"+p.Verbs.Name)
	}
	return all
}()

// needs is the package of functions whose library another one's is linked with.
var needs = func() map[string]string {
	all := map[string]string{}
	for _, p := range rules.Calling() {
		all["generated/"+p.Verbs.Name] = "generated/" + p.Verbs.Needs
	}
	return all
}()

// vendors are the packages that only one vendor's devices have use for.
var vendors = func() (all []string) {
	for _, p := range rules.Calling() {
		if p.Name != "ibv" && p.Name != "rdmacm" {
			all = append(all, "generated/"+p.Name, "generated/"+p.Verbs.Name)
		}
	}
	return all
}()

// verbImports are what the packages of functions need of Go's own.
var verbImports = []string{"errors", "fmt", "runtime", "unsafe"}

// nounImports are the packages of Go that cost nothing: they have no code that runs, or a few instructions.
var nounImports = []string{"math/bits", "structs", "unsafe"}

// forbidden tells why a package of the module may not import another, or "".
func forbidden(from, to string) string {
	to, ours := room(to)
	switch {
	case !ours && strings.HasPrefix(to, "modernc.org/cc") && !under(from, "gen/parse"):
		return "only gen/parse knows the C reader"
	case !ours && strings.HasPrefix(to, "github.com/dave/jennifer") && !under(from, "gen/emit"):
		return "only gen/emit knows jennifer"
	case !ours && under(from, nouns...) && !slices.Contains(nounImports, to):
		return "noun packages import " + strings.Join(nounImports, ", ") + " alone"
	case !ours && under(from, verbs...) && !slices.Contains(verbImports, to):
		return "packages of functions import " + strings.Join(verbImports, ", ") + " alone"
	case !ours:
		return ""
	case under(from, "runtime/offheap", "runtime/program") && to == "runtime":
		return ""
	case under(from, "generated/ibv", "gen/model", "gen/rows", "runtime", "headers"):
		return "imports nothing of ours"
	case under(from, nouns...) && to != "generated/ibv":
		return "noun packages import none of ours but ibv"
	case under(from, "generated/libibverbs") && to != "runtime" && to != "generated/ibv":
		return "libibverbs sees the runtime and its nouns"
	case under(from, verbs...) && to != "runtime" && to != "generated/libibverbs" && to != needs[from] &&
		!under(to, nouns...):
		return "packages of functions see the runtime, libibverbs, what their library is linked with, and nouns"
	case under(from, "generated/witness") && !under(to, "generated"):
		return "the witness sees the generated packages alone"
	case under(to, "gen") && from != "cmd/goverbs" && !under(from, "gen", "conformance", "internal/abicheck"):
		return "only the command, internal/abicheck and conformance import gen"
	case under(to, "conformance") && !under(from, "conformance"):
		return "nothing imports the proof"
	case under(from, "gen") && under(to, "generated", "rdma", "rpma", "runtime"):
		return "facts flow one way"
	case under(from, "rdma") && under(to, vendors...) && !under(from, "rdma/mlx5", "rdma/mlx4", "rdma/efa"):
		return "what only one vendor has is in packages of its own"
	case under(from, "rdma/internal", "rdma/soft") &&
		(to == "rdma" || under(to, "rdma/cm", "rdma/mlx5", "rdma/mlx4", "rdma/efa")):
		return "objects stand on it"
	case under(from, "rdma/internal/provider") && to == "rdma/internal/backend", under(from, "rdma/internal/backend") &&
		to == "rdma/internal/provider":
		return "the rooms of C and of Go know nothing of each other"
	case under(from, "rdma/soft/internal/message", "rdma/soft/internal/wire") && under(to, "rdma/soft/internal/device"):
		return "a message knows neither side's objects"
	case under(from, "rpma") && under(to, "runtime") || under(from, "rpma") && under(to, verbs...):
		return "rpma stands on rdma and rdma/cm"
	case under(from, "rdma") && under(to, "rpma"):
		return "rpma stands on it"
	case under(from, "gen/rules", "gen/emit") && under(to, "gen/parse", "gen/tables", "gen/fetch", "gen/record"):
		return "rules and emit see models, not headers"
	}
	return ""
}

// arrow is an import.
type arrow struct{ from, to string }

// importRow is an arrow that may be, and why it may against the rules.
type importRow struct {
	why   string
	fired bool
}

// importRows reads imports.txt.
func importRows(file string) (map[arrow]*importRow, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	rows := map[arrow]*importRow{}
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) < 2 || len(cells) > 3 {
			return nil, fmt.Errorf("%s:%d: not from, to, why: %q", file, i+1, line)
		}
		a := arrow{cells[0], cells[1]}
		if rows[a] != nil {
			return nil, fmt.Errorf("%s:%d: %s → %s for the second time", file, i+1, a.from, a.to)
		}
		rows[a] = &importRow{why: strings.Join(cells[2:], "")}
	}
	return rows, nil
}

func TestArrows(t *testing.T) {
	seen := 0
	rows, err := importRows("imports.txt")
	require.NoError(t, err)
	for _, p := range list(t, "./...") {
		from, ok := room(p.ImportPath)
		if !ok {
			continue
		}
		seen++
		for _, to := range p.Imports {
			short, _ := room(to)
			row := rows[arrow{from, cmp.Or(short, to)}]
			if row == nil {
				row = &importRow{}
				assert.False(t, under(from, "internal", "rdma", "rpma", "runtime") && strings.Contains(to, "."),
					"%s imports %s: imports.txt has no row for it", from, to)
			}
			row.fired = true
			if why := forbidden(from, to); (why == "") != (row.why == "") {
				t.Errorf("%s imports %s: rule: %q; imports.txt excepts it: %q", from, to, why, row.why)
			}
		}
	}
	for a, row := range rows {
		assert.True(t, row.fired, "imports.txt: %s does not import %s: the row is stale", a.from, a.to)
	}
	assert.Greater(t, seen, 12)
	for from, to := range map[string]string{ // the check itself can fail
		"gen/rules":               "modernc.org/cc/v4",
		"gen/parse":               "github.com/dave/jennifer/jen",
		"generated/ibv":           module + "/runtime",
		"gen/model":               module + "/headers",
		"rdma":                    module + "/gen/model",
		"gen/emit":                module + "/gen/parse",
		"runtime":                 module + "/generated/ibv",
		"generated/libibverbs":    module + "/generated/rdmacm",
		"generated/librdmacm":     module + "/rdma",
		"generated/libmlx5":       module + "/generated/librdmacm",
		"generated/libefa":        "github.com/ebitengine/purego",
		"generated/libmlx4":       "os",
		"rdma/soft":               module + "/rdma",
		"rdma/internal/life":      module + "/rdma",
		"rpma":                    module + "/generated/librdmacm",
		"rdma/internal/chosen":    module + "/rpma",
		"rdma/cm":                 module + "/generated/mlx5dv",
		"rdma/soft/internal/wire": module + "/rdma/soft/internal/device",
		"generated/mlx5dv":        module + "/generated/rdmacm",
		"generated/rdmacm":        "strconv",
		"generated/efadv":         module + "/runtime",
		"generated/mlx4dv":        "github.com/stretchr/testify",
	} {
		assert.NotEmpty(t, forbidden(from, to), "%s imports %s", from, to)
	}
	assert.Empty(t, forbidden("generated/mlx5dv", module+"/generated/ibv"))
	assert.Empty(t, forbidden("rdma/mlx5", module+"/generated/mlx5dv"))
}

// TestVendors checks that the packages that rdma needs have nothing that only one vendor has, except what rdma imports
// by a row of imports.txt.
func TestVendors(t *testing.T) {
	rows, err := importRows("imports.txt")
	require.NoError(t, err)
	rdma := list(t, "./rdma")[0]
	excepted := slices.ContainsFunc(vendors, func(v string) bool { return rows[arrow{"rdma", v}] != nil })
	for _, to := range rdma.Deps {
		if to, ours := room(to); ours && !excepted {
			assert.False(t, under(to, vendors...), "rdma needs %s", to)
		}
	}
}

// TestNounsNeedNothing checks that a program that wants layouts alone gets no third-party code, and only three of Go's
// own packages.
func TestNounsNeedNothing(t *testing.T) {
	all := list(t, nounPatterns()...)
	assert.Len(t, all, len(nouns))
	for _, p := range all {
		for _, to := range p.Deps {
			if to == module+"/generated/ibv" || strings.HasPrefix(to, "internal/") { // what Go's own three need
				continue
			}
			assert.Contains(t, nounImports, to, "%s", p.ImportPath)
		}
	}
}

// nounPatterns names the noun packages for the go command.
func nounPatterns() (all []string) {
	for _, n := range nouns {
		all = append(all, "./"+n)
	}
	return all
}
