// SPDX-License-Identifier: BSD-2-Clause

// Package house proves what ARCHITECTURE.md says about the packages of this module: what each imports, where each
// compiles, and how its files depend on each other.
package house

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/house/targets"
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
	case under(to, "gen") && !under(from, "gen", "conformance"):
		return "only conformance imports gen"
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
	case under(from, "rdma/internal/datapath", "rdma/internal/provider", "rdma/internal/backend") &&
		to == "rdma/internal/wq":
		return "queues stand on it"
	case under(from, "rdma/internal/wq") && to == "rdma/internal/life":
		return "queues know no objects"
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
		"rdma/internal/wq":        module + "/rdma/internal/life",
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

// TestEveryTarget type-checks the packages of types and functions, the call layer and what stands on it for every GOOS
// and GOARCH of this Go: where there is no C to call, they say so when they are called, not when they are built.
// On 64-bit Linux that asserts layouts, which are checked for each target of Linux. Make test-all checks all packages
// for all targets; otherwise, of targets of Linux that have the same files and sizes of types, one is checked for more
// than layouts, and of each other system one.
func TestEveryTarget(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "tool", "dist", "list").Output()
	require.NoError(t, err)
	all := strings.Fields(string(out))
	require.Greater(t, len(all), 40)
	var packages []string
	for _, p := range list(t, "./generated/...", "./runtime", "./rdma/...") {
		name, ours := room(p.ImportPath)
		require.True(t, ours)
		packages = append(packages, name)
	}
	require.Subset(t, packages, append([]string{"runtime", "rdma", "rdma/soft", "rdma/cm"}, append(nouns, verbs...)...))
	checker, err := targets.New("../..")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, target := range all {
		goos, goarch, _ := strings.Cut(target, "/")
		same, these := goos, packages
		if goos == "linux" {
			own, err := checker.Own(goos, goarch, packages...)
			require.NoError(t, err)
			same += own
		}
		switch again := seen[same] && os.Getenv("GOVERBS_EVERYTHING") == ""; {
		case again && goos == "linux":
			these = nouns
		case again:
			continue
		}
		seen[same] = true
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			assert.NoError(t, checker.Check(goos, goarch, these...))
		})
	}
	assert.Greater(t, len(seen), 15)
}

// TestOthersCompile type-checks what no other test compiles: every package with 32 bits, and an example that is a
// module of its own. Make test-all checks both such examples with 32 bits.
func TestOthersCompile(t *testing.T) {
	t.Parallel()
	modules := map[string][]string{"../..": {"386"}, "../../examples/grpc": {"amd64"}}
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		modules["../../examples/grpc"] = []string{"amd64", "386"}
		modules["../../examples/valkey"] = []string{"amd64", "386"}
	}
	for dir, arches := range modules {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			run := func(arg ...string) (out, complaints string, err error) {
				var stderr strings.Builder
				cmd := exec.Command("go", arg...)
				cmd.Dir, cmd.Stderr = dir, &stderr
				text, err := cmd.Output()
				return string(text), stderr.String(), err
			}
			if _, why, err := run("mod", "download"); err != nil {
				t.Skipf("the modules that %s needs can't be had here (make deps brings them): %s", dir, why)
			}
			checker, err := targets.New(dir)
			require.NoError(t, err)
			out, why, err := run("list", "-f", "{{.Dir}}", "./...")
			require.NoError(t, err, why)
			root, err := filepath.Abs(dir)
			require.NoError(t, err)
			var packages []string
			for dir := range strings.Lines(out) {
				name, err := filepath.Rel(root, strings.TrimSpace(dir))
				require.NoError(t, err)
				packages = append(packages, name)
			}
			require.NotEmpty(t, packages)
			for _, arch := range arches {
				assert.NoError(t, checker.Check("linux", arch, packages...), "%s: %s", dir, arch)
			}
		})
	}
}

// TestStaticProgram checks that a program that imports the nouns is static without cgo.
func TestStaticProgram(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module user\n\ngo 1.26\n\nrequire "+module+
		" v0.0.0\n\nreplace "+module+" => "+root+"\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(`package main

import (
	"fmt"

	"`+module+`/generated/ibv"
)

func main() {
	wr := ibv.SendWR{Opcode: ibv.WR_RDMA_WRITE_WITH_IMM, SendFlags: ibv.SEND_SIGNALED | ibv.SEND_INLINE}
	*wr.ImmData() = ibv.ToBE32(7)
	wr.WR.RDMA().RKey = 0x1234
	fmt.Println(wr.Opcode, wr.SendFlags, wr.ImmData().Host(), ibv.PostSendValidity(ibv.QPT_UC, ibv.WR_RDMA_READ).Answer)
}
`), 0o644))
	for _, arch := range []string{"amd64", "arm64"} {
		build := exec.Command("go", "build", "-o", arch, ".")
		build.Dir = dir
		build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		f, err := elf.Open(filepath.Join(dir, arch))
		require.NoError(t, err)
		defer f.Close()
		for _, p := range f.Progs {
			assert.NotEqual(t, elf.PT_INTERP, p.Type, "the program asks for a dynamic linker")
		}
		libraries, err := f.ImportedLibraries()
		assert.NoError(t, err)
		assert.Empty(t, libraries)
	}
	out, err := exec.Command(filepath.Join(dir, "amd64")).CombinedOutput()
	if err != nil && strings.Contains(err.Error(), "exec format") {
		out, err = exec.Command(filepath.Join(dir, "arm64")).CombinedOutput()
	}
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "IBV_WR_RDMA_WRITE_WITH_IMM IBV_SEND_SIGNALED|IBV_SEND_INLINE 7 no\n", string(out))
}
