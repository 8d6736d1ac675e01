// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
)

// zero returns Go source for the zero value of a parameter.
func zero(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "nil"
	case *ast.Ident:
		switch e.Name {
		case "string":
			return `""`
		case "bool":
			return "false"
		}
	}
	return "0"
}

// caller returns a program that calls every function that returns an error with zero values, and prints the results.
func caller(all []function) string {
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n\t\"errors\"\n\t\"fmt\"\n\t\"syscall\"\n\n" +
		"\t\"github.com/goverbs/goverbs/runtime\"\n")
	for _, p := range rules.Calling() {
		fmt.Fprintf(&b, "\t\"github.com/goverbs/goverbs/generated/%s\"\n", p.Verbs.Name)
	}
	b.WriteString(`)

func tell(name string, err error) {
	var missing *runtime.NotSupportedError
	var null *runtime.NilError
	switch {
	case errors.As(err, &missing) && errors.Is(err, runtime.ErrNotSupported):
		fmt.Println(name, "missing", err)
	case errors.As(err, &null) && errors.Is(err, syscall.EINVAL):
		fmt.Println(name, "nil", err)
	default:
		fmt.Println(name, "other", err)
	}
}

func main() {
`)
	for _, f := range all {
		if !f.fails {
			continue
		}
		var args []string
		for _, p := range f.params {
			args = append(args, zero(p))
		}
		call := fmt.Sprintf("%s.%s(%s)", f.pkg, f.name, strings.Join(args, ", "))
		if f.values > 0 {
			fmt.Fprintf(&b, "\t{ _, err := %s; tell(%q, err) }\n", call, f.pkg+"."+f.name)
		} else {
			fmt.Fprintf(&b, "\ttell(%q, %s)\n", f.pkg+"."+f.name, call)
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// TestWithoutLibraries checks that a program that imports all the packages starts without the libraries, and that each
// function reports the missing library or the nil argument without crashing.
func TestWithoutLibraries(t *testing.T) {
	all := functions(t)
	dir := t.TempDir()
	main := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(main, []byte(caller(all)), 0o644))
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "caller"), main)
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	run := exec.Command(filepath.Join(dir, "caller"))
	run.Env = os.Environ()
	for _, p := range rules.Calling() {
		run.Env = append(run.Env, fmt.Sprintf("GOVERBS_%s=/nonexistent/%s", strings.ToUpper(p.Verbs.Name),
			p.Verbs.SOName))
	}
	out, err = run.CombinedOutput()
	require.NoError(t, err, "%s", out)

	reports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, desc, _ := strings.Cut(strings.TrimSpace(line), " ")
		reports[name] = desc
	}
	kinds := map[string]int{}
	for _, f := range all {
		name := f.pkg + "." + f.name
		if !f.fails || name == "librdmacm.SetErrno" { // succeeds with 0
			continue
		}
		kind, message, _ := strings.Cut(reports[name], " ")
		kinds[kind]++
		switch kind {
		case "missing":
			assert.Contains(t, message, "/nonexistent/", name)
			assert.Contains(t, message, "GOVERBS_LIB", name)
			called, _, _ := strings.Cut(message, ":") // for an inline function, the function that it calls
			assert.Contains(t, f.c+" ibv_dereg_mr", strings.TrimLeft(called, "_"),
				"%s: the message starts with the C function's name", name)
		case "nil":
			assert.Regexp(t, `^\w+: \w+ is nil$`, message, name)
		default:
			t.Errorf("%s: %s", name, reports[name])
		}
	}
	assert.Greater(t, kinds["missing"], 300)
	assert.Greater(t, kinds["nil"], 80)
}
