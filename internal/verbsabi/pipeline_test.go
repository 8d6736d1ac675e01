// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/rules"
)

const (
	cases  = "../../gen/generate/testdata"
	header = "infiniband/in.h"
)

// caseOf reads a file of the generator's golden tests.
func caseOf(t *testing.T, path string) (files map[string]string) {
	archive, err := txtar.ParseFile(path)
	require.NoError(t, err)
	files = map[string]string{}
	for _, f := range archive.Files {
		files[f.Name] = string(f.Data)
	}
	return files
}

// modelOf parses the header of a golden test for every target of the probe, and writes it for C compilers.
func modelOf(t *testing.T, text string) (r *model.Release, include string) {
	r, err := parse.Read(parse.Source{Release: "1.0", Include: fstest.MapFS{header: {Data: []byte(text)}},
		Name: "include", Headers: []string{header}, Targets: probe().Targets})
	require.NoError(t, err)
	include = t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(include, filepath.Dir(header)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(include, header), []byte(text), 0o644))
	return r, include
}

// TestShapes: the C compilers of all targets verify the models of the golden tests' headers, which contain more
// constructs than real headers.
func TestShapes(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(cases, "*.txtar"))
	require.NoError(t, err)
	judged := 0
	for _, path := range paths {
		files := caseOf(t, path)
		if files["err.txt"] != "" || strings.HasSuffix(path, "flexible-union.txtar") { // which few compilers accept
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			r, include := modelOf(t, files["in.h"])
			for _, target := range r.Targets {
				cc, err := FindCompiler(target)
				if errors.Is(err, ErrNoCompiler) {
					continue
				}
				require.NoError(t, err)
				report, err := CWitness(context.Background(), cc, include, r, target)
				require.NoError(t, err)
				assert.Empty(t, report.Mismatches, target)
				judged++
			}
		})
	}
	if _, err := FindCompiler(runtime.GOARCH); err == nil {
		assert.Greater(t, judged, 20)
	}
}

// accessor is a bitfield in C and in Go.
type accessor struct{ record, path, goRecord, goName, goType string }

var accessors = []accessor{
	{"struct t_bits", "low", "Bits", "Low", "uint32"}, {"struct t_bits", "number", "Bits", "Number", "int32"},
	{"struct t_bits", "mode", "Bits", "Mode", "golden.Mode"}, {"struct t_bits", "wide", "Bits", "Wide", "uint64"},
	{"struct t_bits", "truth", "Bits", "Truth", "bool"}, {"struct t_bits", "held", "Bits", "Held", "golden.Mode"},
	{"struct t_bits", "rest", "Bits", "Rest", "uint32"}, {"struct t_bits", "inner", "Bits", "Inner", "uint16"},
	{"struct t_bits", "tail", "Bits", "Tail", "uint16"}, {"struct t_packed", "seven", "Packed", "Seven", "uint32"},
	{"struct t_packed", "across", "Packed", "Across", "int32"}, {"union t_either", "some", "Either", "Some", "uint32"},
	{"union t_either", "nibble", "Either", "Nibble", "uint32"}, {"union t_either", "byte", "Either", "Byte", "uint32"},
}

// programs returns a C and a Go program that print each bitfield of records with various contents, and the records
// after the bitfield was set.
func programs() (c, golang string) {
	c = "#include <stdio.h>\n#include <" + header + ">\nstatic unsigned char state;\n" +
		"static void fill(unsigned char *p, int n) { for (int i = 0; i < n; i++) p[i] = state = state * 37 + 11; }\n" +
		"static void dump(unsigned char *p, int n) { for (int i = 0; i < n; i++) printf(\"%02x\", p[i]); puts(\"\"); }\n" +
		"static long long values[] = {0, -1, 0x5a5a5a5a5a5a5a5a, 0x0123456789abcdef};\nint main(void) {\n"
	golang = "package main\n\nimport (\n\"fmt\"\n\"unsafe\"\n\n\"golden/golden\"\n)\n\nvar state byte\n\n" +
		"func fill(b []byte) { for i := range b { state = state*37 + 11; b[i] = state } }\n\n" +
		"func main() {\nvalues := []int64{0, -1, 0x5a5a5a5a5a5a5a5a, 0x0123456789abcdef}\n"
	for _, a := range accessors {
		c += fmt.Sprintf("for (int i = 0; i < 4; i++) { union { %s r; unsigned char b[sizeof(%[1]s)]; } u;\n"+
			"fill(u.b, sizeof u.b); printf(\"%s %%lld \", (long long)u.r.%[2]s); u.r.%[2]s = values[i];\n"+
			"dump(u.b, sizeof u.b); }\n", a.record, a.path)
		get, set := fmt.Sprintf("int64(r.%s())", a.goName), fmt.Sprintf("%s(v)", a.goType)
		if a.goType == "bool" {
			get, set = fmt.Sprintf("map[bool]int64{true: 1}[r.%s()]", a.goName), "v != 0"
		}
		golang += fmt.Sprintf("for _, v := range values { r := new(golden.%s)\n"+
			"b := unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r))\nfill(b)\n"+
			"fmt.Printf(\"%s %%d \", %s)\nr.Set%s(%s)\nfmt.Printf(\"%%x\\n\", b) }\n", a.goRecord, a.path, get, a.goName, set)
	}
	return c + "}\n", golang + "}\n"
}

// TestBitfields compares generated accessors with C at run time: values, signs, and adjacent bits. It runs on this
// machine and, emulated, on one with the other byte order.
func TestBitfields(t *testing.T) {
	files := caseOf(t, filepath.Join(cases, "bitfields.txtar"))
	r, include := modelOf(t, files["in.h"])
	text, err := r.Encode()
	require.NoError(t, err)
	x, err := rules.ParseExceptions("exceptions.txt", files["exceptions.txt"])
	require.NoError(t, err)
	res, err := generate.FromInputs(
		[]rules.Input{{Release: r, Path: "1.0.json", Text: text, Recorded: rules.Recorded{r}}},
		[]rules.Package{{Name: "golden", Prefixes: []string{"t_", "T_"}, Headers: []string{header}, Synopsis: "is a test"}}, x)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for name, text := range res.Files {
		if strings.HasPrefix(name, "golden/") {
			write(name, string(text))
		}
	}
	c, golang := programs()
	write("go.mod", "module golden\n\ngo 1.26\n")
	write("main.go", golang)
	write("main.c", c)
	for _, target := range []string{runtime.GOARCH, "s390x"} {
		t.Run(target, func(t *testing.T) {
			var emulator []string
			cc, err := FindCompiler(target)
			if target != runtime.GOARCH {
				path, missing := exec.LookPath("qemu-" + target)
				if err != nil || missing != nil {
					t.Skip("it needs a C compiler and qemu-user for ", target)
				}
				emulator = []string{path}
			}
			if errors.Is(err, ErrNoCompiler) {
				t.Skip(err)
			}
			require.NoError(t, err)
			run := func(command ...string) string {
				cmd := exec.Command(command[0], command[1:]...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+target, "CGO_ENABLED=0", "GOFLAGS=")
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%v: %s", command, out)
				return string(out)
			}
			run(append(cc, "-std=gnu11", "-static", "-I", include, "-o", "c-"+target, "main.c")...)
			run("go", "build", "-o", "go-"+target, ".")
			want := run(append(emulator, filepath.Join(dir, "c-"+target))...)
			assert.Equal(t, len(accessors)*4, strings.Count(want, "\n"))
			assert.Equal(t, want, run(append(emulator, filepath.Join(dir, "go-"+target))...))
		})
	}
}
