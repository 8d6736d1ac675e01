// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/rules"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// goldenTargets include one with larger C library types and one with big-endian byte order.
var goldenTargets = []string{"amd64", "arm64", "s390x"}

// TestGolden generates Go from small C headers, one for each construct of C. A case holds in.h, optionally
// exceptions.txt, and the output: Go files, or err.txt for a header that must be rejected.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.Greater(t, len(cases), 15)
	module := t.TempDir()
	for _, path := range cases {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		t.Run(name, func(t *testing.T) {
			golden(t, path, filepath.Join(module, strings.ReplaceAll(name, "-", "")))
		})
	}
	// the output must compile, which checks its layout assertions
	require.NoError(t, os.WriteFile(filepath.Join(module, "go.mod"), []byte("module golden\n\ngo 1.26\n"), 0o644))
	for _, arch := range goldenTargets {
		cmd := exec.Command("go", "vet", "./...")
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s: %s", arch, out)
	}
}

func golden(t *testing.T, path, dir string) {
	archive, err := txtar.ParseFile(path)
	require.NoError(t, err)
	in := map[string]string{}
	want := map[string]string{}
	var kept []txtar.File
	for _, f := range archive.Files {
		if slices.Contains(inputs, f.Name) {
			in[f.Name] = string(f.Data)
			kept = append(kept, f)
		} else {
			want[f.Name] = string(f.Data)
		}
	}
	got := map[string]string{}
	res, err := fromC(in)
	if err != nil {
		got["err.txt"] = err.Error() + "\n"
	} else {
		for name, text := range res.Files {
			if strings.HasPrefix(name, "libgolden/") && slices.Contains(verbFiles, filepath.Base(name)) {
				_, body, _ := strings.Cut(string(text), "DO NOT EDIT.\n")
				got[name] = strings.TrimLeft(body, "\n")
			}
			base := strings.TrimPrefix(name, "golden/")
			if base == name || in["conventions.txt"] != "" || base == "func.go" &&
				!strings.Contains(string(text), "Prototype:") {
				continue
			}
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, base), text, 0o644))
			if slices.Contains([]string{"doc.go", "support.go", "address.go", "helpers.go", "text.go"}, base) ||
				strings.HasPrefix(base, "layout_") {
				continue // the same in all cases, or checked by the compiler
			}
			_, body, _ := strings.Cut(string(text), "DO NOT EDIT.\n")
			got[base] = strings.TrimLeft(body, "\n")
		}
	}
	if *update {
		archive.Files = kept
		for _, name := range slices.Sorted(maps.Keys(got)) {
			archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(got[name])})
		}
		require.NoError(t, os.WriteFile(path, txtar.Format(archive), 0o644))
		return
	}
	assert.Equal(t, want, got)
}

// inputs are the input files of a case. With conventions.txt, only the package of functions is printed.
var inputs = []string{"in.h", "exceptions.txt", "conventions.txt", "routing.txt", "verbs.txt"}

// verbFiles are the files in the package of functions that depend on the header.
var verbFiles = []string{"extern.go", "slot.go", "extended.go", "call.go", "function.go"}

// fromC generates the package golden from one header.
func fromC(in map[string]string) (*Result, error) {
	const name = "infiniband/in.h"
	header, exceptions := in["in.h"], in["exceptions.txt"]
	r, err := parse.Read(parse.Source{
		Release: "1.0", Include: fstest.MapFS{name: {Data: []byte(header)}}, Name: "include", Headers: []string{name},
		Targets: goldenTargets,
	})
	if err != nil {
		return nil, err
	}
	text, err := r.Encode()
	if err != nil {
		return nil, err
	}
	x, err := rules.ParseExceptions("exceptions.txt", exceptions)
	if err != nil {
		return nil, err
	}
	p := rules.Package{Name: "golden", Prefixes: []string{"t_", "T_"}, Headers: []string{name}, Synopsis: "is a test"}
	if in["conventions.txt"] != "" {
		rows, err := rules.ParseVerbRows(in["conventions.txt"], in["routing.txt"], in["verbs.txt"])
		if err != nil {
			return nil, err
		}
		p.Verbs = &rules.Verbs{Name: "libgolden", SOName: "libgolden.so.1", Rows: rows}
	}
	measured, err := model.ReadMeasured(os.DirFS(measuredDir))
	if err != nil {
		return nil, err
	}
	input := rules.Input{Release: r, Path: "1.0.json", Text: text, Measured: measured, Recorded: rules.Recorded{r}}
	return FromInputs([]rules.Input{input}, []rules.Package{p}, x)
}

func goBuild(dir, arch string) (string, error) {
	cmd := exec.Command("go", "build", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
