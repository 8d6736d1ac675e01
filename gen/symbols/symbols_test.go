// SPDX-License-Identifier: BSD-2-Clause

package symbols

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// tool returns a function that runs a program of binutils or a C compiler, both installed by make deps.
func tool(t *testing.T, name string) func(args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed; run make deps", name)
	}
	return func(args ...string) string {
		t.Helper()
		cmd := exec.Command(path, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s %v: %s", name, args, stderr.String())
		return string(out)
	}
}

// built compiles a shared library from C source, with a version script unless script is empty.
func built(t *testing.T, source, script string, flags ...string) string {
	t.Helper()
	cc := tool(t, "gcc")
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	out := filepath.Join(dir, "libtest.so.1")
	args := append([]string{"-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libtest.so.1", "-o", out,
		write("test.c", source)}, flags...)
	if script != "" {
		args = append(args, "-Wl,--version-script="+write("test.map", script))
	}
	cc(args...)
	return out
}

func readFile(t *testing.T, file string) (*model.Library, error) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return Read(filepath.Base(file), bytes.NewReader(data))
}

const versioned = `
	int now_2(void) { return 2; }
	int now_1(void) { return 1; }
	__asm__(".symver now_1, now@TEST_1.0");
	__asm__(".symver now_2, now@@TEST_1.10");
	int first(void) { return 0; }
	int inner(void) { return first(); }
	char table[24];
	__attribute__((weak)) int loose(void) { return now_2(); }
`

func TestRead(t *testing.T) {
	file := built(t, versioned, `TEST_1.0 { global: first; now; local: *; };
		TEST_1.9 { global: table; loose; } TEST_1.0;
		TEST_1.10 { global: now; } TEST_1.9;
		TEST_PRIVATE { global: inner; };`)
	lib, err := readFile(t, file)
	require.NoError(t, err)
	assert.Equal(t, &model.Library{
		Name: "libtest.so.1",
		Versions: []model.Version{{Name: "TEST_1.0"}, {Name: "TEST_1.9", After: []string{"TEST_1.0"}},
			{Name: "TEST_1.10", After: []string{"TEST_1.9"}}, {Name: "TEST_PRIVATE"}},
		Symbols: []model.Symbol{
			{Name: "first", Version: "TEST_1.0"},
			{Name: "inner", Version: "TEST_PRIVATE"},
			{Name: "loose", Version: "TEST_1.9"},
			{Name: "now", Version: "TEST_1.0", Old: true},
			{Name: "now", Version: "TEST_1.10"},
			{Name: "table", Version: "TEST_1.9", Object: true, Size: 24},
		},
	}, lib)
	checkWithBinutils(t, file)
}

// TestReadWithoutVersions checks that a library without symbol versions can be read.
func TestReadWithoutVersions(t *testing.T) {
	file := built(t, "int f(void) { return 0; }\nint x;\n", "")
	lib, err := readFile(t, file)
	require.NoError(t, err)
	assert.Equal(t, []model.Symbol{{Name: "f"}, {Name: "x", Object: true, Size: 4}}, lib.Symbols)
	assert.Empty(t, lib.Versions)
	checkWithBinutils(t, file)
}

func TestReadRejects(t *testing.T) {
	_, err := Read("libtest.so.1", strings.NewReader(strings.Repeat("#!/bin/sh\n", 10)))
	assert.ErrorContains(t, err, "symbols of libtest.so.1: bad magic number")
	file := built(t, versioned, "TEST_1.0 { global: now; local: *; }; TEST_1.10 { global: now; };")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	_, err = Read("libother.so.1", bytes.NewReader(data))
	assert.EqualError(t, err, `symbols of libother.so.1: unexpected soname ["libtest.so.1"]`)
	for n := 0; n < len(data); n += len(data) / 50 {
		_, err = Read("libtest.so.1", bytes.NewReader(data[:n]))
		assert.Error(t, err, "cut off after %d bytes", n)
	}
	_, err = readFile(t, built(t, "__thread int x;", ""))
	assert.EqualError(t, err,
		"symbols of libtest.so.1: x: a symbol of type STT_TLS, which is neither a function nor an object")
}

// TestAgainstBinutils compares the pinned libraries in the cache with the output of binutils.
func TestAgainstBinutils(t *testing.T) {
	files, err := filepath.Glob("../../headers/cache/*/lib/*.so.*")
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("headers/cache has no libraries; run make headers")
	}
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, "../../headers/cache/"), func(t *testing.T) { checkWithBinutils(t, file) })
	}
}

var (
	nmLine  = regexp.MustCompile(`^[0-9a-f]+(?: ([0-9a-f]+))? ([A-Za-z]) (\S+)$`)
	version = regexp.MustCompile(`^  \S+ Rev: 1  Flags: (\S+) +Index: \d+  Cnt: \d+  Name: (\S+)$`)
	parent  = regexp.MustCompile(`^  \S+ Parent \d+: (\S+)$`)
)

// checkWithBinutils compares the symbols of a library with the output of nm and readelf.
func checkWithBinutils(t *testing.T, file string) {
	t.Helper()
	lib, err := readFile(t, file)
	require.NoError(t, err)
	require.NoError(t, (&model.Release{Project: "test", Name: "1.0", Targets: []string{"amd64"},
		Libraries: []model.Library{*lib}}).Check())

	var want, have []string
	for line := range strings.Lines(tool(t, "nm")("-D", "-S", "--defined-only", "--with-symbol-versions", file)) {
		m := nmLine.FindStringSubmatch(strings.TrimSpace(line))
		require.NotNil(t, m, line)
		switch kind := m[2]; kind {
		case "A": // the symbol of a version name
		case "T", "W", "i":
			want = append(want, m[3])
		default:
			size, err := strconv.ParseInt(m[1], 16, 64)
			require.NoError(t, err, line)
			want = append(want, m[3]+" object "+strconv.FormatInt(size, 10))
		}
	}
	for _, s := range lib.Symbols {
		text := s.String()
		if s.Object {
			text += " object " + strconv.FormatInt(s.Size, 10)
		}
		have = append(have, text)
	}
	slices.Sort(want)
	slices.Sort(have)
	assert.Equal(t, want, have)

	var versions []model.Version
	base := false
	for line := range strings.Lines(tool(t, "readelf")("--version-info", "--wide", file)) {
		line = strings.TrimRight(line, "\n")
		if m := version.FindStringSubmatch(line); m != nil {
			if base = m[1] == "BASE"; !base {
				versions = append(versions, model.Version{Name: m[2]})
			}
		}
		if m := parent.FindStringSubmatch(line); m != nil && !base {
			last := &versions[len(versions)-1]
			last.After = append(last.After, m[1])
		}
	}
	assert.Equal(t, versions, lib.Versions)
}
