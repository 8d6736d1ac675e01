// SPDX-License-Identifier: BSD-2-Clause

package freebsd

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/house/targets"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/headers"
	"github.com/goverbs/goverbs/internal/verbsabi"
)

// sourceTree is the environment variable with the directory of a FreeBSD source tree, whose C library headers are used
// in place of headers/freebsd/shim.
const sourceTree = "GOVERBS_FREEBSD_SRC"

var triples = map[string]string{"amd64": "x86_64-unknown-freebsd", "arm64": "aarch64-unknown-freebsd"}

// primary returns the model from which generated/freebsd is generated.
func primary(t *testing.T) *model.Release {
	t.Helper()
	all, _, err := recorded.Releases()
	require.NoError(t, err)
	for _, r := range all {
		if r.Project == "freebsd" {
			return r
		}
	}
	t.Fatal("no model of FreeBSD")
	return nil
}

// cached returns the directory of the pinned headers, or skips the test.
func cached(t *testing.T, r *model.Release) string {
	t.Helper()
	dir := filepath.Join("../../headers/cache/freebsd-"+r.Name, "include")
	if _, err := os.Stat(filepath.Join(dir, "infiniband/verbs.h")); err != nil {
		t.Skipf("FreeBSD's headers are not in headers/cache: %v; make headers FROM=DIR takes them from a source tree", err)
	}
	return dir
}

// clang returns the compiler for a target, or skips the test.
func clang(t *testing.T, r *model.Release, target string) verbsabi.Compiler {
	t.Helper()
	if _, err := exec.LookPath("clang"); err != nil {
		t.Skip("needs clang, which compiles for FreeBSD on every system: ", err)
	}
	return verbsabi.Compiler{"clang", "-target", triples[target] + r.Name, "-nostdlibinc"}
}

// ourLibrary returns an include directory with the C library headers of this repository.
func ourLibrary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range []fs.FS{headers.Shim(), os.DirFS("../../headers/freebsd/shim")} {
		require.NoError(t, fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
			to := filepath.Join(dir, path)
			if err != nil || d.IsDir() {
				return os.MkdirAll(to, 0o755)
			}
			text, err := fs.ReadFile(from, path)
			if err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o644)
		}))
	}
	return dir
}

// theirLibrary returns the include directories of FreeBSD's C library in a source tree, arranged as installed.
func theirLibrary(t *testing.T, tree, target string) string {
	t.Helper()
	tree, err := filepath.Abs(tree)
	require.NoError(t, err)
	dir := t.TempDir()
	for link, to := range map[string]string{
		"machine":             "sys/" + target + "/include",
		"x86":                 "sys/x86/include",
		"infiniband/types.h":  "contrib/ofed/include/types.h",
		"infiniband/endian.h": "contrib/ofed/include/endian.h",
		"errno.h":             "sys/sys/errno.h",
		"sched.h":             "sys/sys/sched.h",
		"stdint.h":            "sys/sys/stdint.h",
	} {
		from := filepath.Join(dir, link)
		require.NoError(t, os.MkdirAll(filepath.Dir(from), 0o755))
		_, err := os.Stat(filepath.Join(tree, to))
		require.NoError(t, err, "%s=%s is not a FreeBSD source tree", sourceTree, tree)
		require.NoError(t, os.Symlink(filepath.Join(tree, to), from))
	}
	return dir + ":" + filepath.Join(tree, "include") + ":" + filepath.Join(tree, "sys")
}

// TestSystem: for each target, the layouts that generated/freebsd asserts hold in Go, and those of socket addresses and
// times are those of package syscall.
func TestSystem(t *testing.T) {
	t.Parallel()
	checker, err := targets.New("../..")
	require.NoError(t, err)
	for _, target := range primary(t).Targets {
		t.Run(target, func(t *testing.T) {
			assert.NoError(t, checker.Check("freebsd", target, "conformance/freebsd"))
		})
	}
}

// TestClangAgrees: clang, for each target, lays out FreeBSD's headers as the model says, and every constant, prototype
// and enumeration is the same.
func TestClangAgrees(t *testing.T) {
	t.Parallel()
	r := primary(t)
	dir := cached(t, r)
	require.Equal(t, []string{"amd64", "arm64"}, r.Targets)
	for _, target := range r.Targets {
		cc := clang(t, r, target)
		check := func(t *testing.T, library string) {
			t.Parallel()
			report, err := verbsabi.CWitness(context.Background(), cc, dir+":"+library, r, target)
			require.NoError(t, err)
			assert.Empty(t, report.Mismatches)
			assert.Equal(t, verbsabi.Counts{Structs: 108, Fields: 685, Enumerators: 440, Constants: 22, Prototypes: 151},
				report.Counts)
			assert.Greater(t, report.Facts, 3000)
		}
		t.Run(target+" with our C library headers", func(t *testing.T) { check(t, ourLibrary(t)) })
		t.Run(target+" with FreeBSD's C library headers", func(t *testing.T) {
			tree := os.Getenv(sourceTree)
			if tree == "" {
				t.Skipf("%s is not set; set it to the directory of a FreeBSD source tree", sourceTree)
			}
			check(t, theirLibrary(t, tree, target))
		})
	}
}

// TestDrift: a header that differs from the model is reported, for each target.
func TestDrift(t *testing.T) {
	t.Parallel()
	r := primary(t)
	dir := cached(t, r)
	changed := t.TempDir()
	require.NoError(t, os.CopyFS(changed, os.DirFS(dir)))
	file := filepath.Join(changed, "infiniband/verbs.h")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	const was, is = "\tint\t\t\tnum_comp_vectors;\n", "\tint\t\t\tnum_comp_vectors[3];\n"
	require.Equal(t, 1, strings.Count(string(text), was))
	require.NoError(t, os.Chmod(file, 0o644))
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), was, is, 1)), 0o644))
	for _, target := range r.Targets {
		report, err := verbsabi.CWitness(context.Background(), clang(t, r, target), changed+":"+ourLibrary(t), r, target)
		require.NoError(t, err)
		var found []string
		for _, m := range report.Mismatches {
			found = append(found, m.Item.String())
		}
		assert.Contains(t, found, "ibv_context,mutex,offset", target)
		assert.Contains(t, found, "ibv_context,,size", target)
	}
}
