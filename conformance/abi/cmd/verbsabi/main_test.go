// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/headers"
	"github.com/goverbs/goverbs/internal/verbsabi"
)

const cacheDir = "../../../../headers/cache"

func command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// headersOf returns a copy of the headers of a pinned release, which a test may modify.
func headersOf(t *testing.T, release string) string {
	t.Helper()
	from := filepath.Join(cacheDir, release, "include")
	if _, err := os.Stat(filepath.Join(from, "infiniband", "verbs.h")); err != nil {
		t.Skipf("the headers of rdma-core %s are missing (%v); run make headers", release, err)
	}
	dir := filepath.Join(t.TempDir(), "include")
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	return dir
}

func change(t *testing.T, dir, old, new string) {
	t.Helper()
	name := filepath.Join(dir, "infiniband", "verbs.h")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(text, []byte(old)), "%q", old)
	require.NoError(t, os.Chmod(name, 0o644))
	require.NoError(t, os.WriteFile(name, bytes.Replace(text, []byte(old), []byte(new), 1), 0o644))
}

func TestIdentical(t *testing.T) {
	code, out, errs := command("-only", "headers", "-I", headersOf(t, "65.0"))
	assert.Equal(t, 0, code, "%s%s", out, errs)
	assert.Contains(t, out, "rdma-core 65.0  "+runtime.GOARCH)
	assert.Contains(t, out, "489 prototypes, 0 mismatches\nidentical: ")
	assert.Empty(t, errs)
}

func TestOlder(t *testing.T) {
	old := headersOf(t, "44.0")
	code, out, errs := command("-only", "headers", "-I", old)
	assert.Equal(t, 0, code, "%s%s", out, errs)
	assert.Regexp(t, `\n  fine : headers of rdma-core: 2\d\d differences\n-v lists compatible differences\n$`, out)
	assert.Equal(t, 1, strings.Count(out, "fine :"))
	code, out, errs = command("-v", "-only", "headers", "-I", old)
	assert.Equal(t, 0, code, "%s%s", out, errs)
	assert.Contains(t, out, " are of rdma-core 44.0; the Go packages ibv, rdmacm, mlx5dv, mlx4dv, efadv, manadv were "+
		"generated from 65.0")
	assert.Contains(t, out, "\ncompatible: ")
	assert.Contains(t, out, "fine : function ibv_reg_mr_ex: not in these headers: these headers are older; since "+
		"65.0\n")
	assert.NotContains(t, out, "wrong")
}

func TestIncompatible(t *testing.T) {
	for _, test := range []struct{ release, old, new, want string }{
		{"33.2", "IBV_WR_SEND,\n", "IBV_WR_SEND = 9,\n",
			"wrong: enumerator IBV_WR_SEND: value is 9 in these headers, 2 in Go"},
		{"44.0", "struct ibv_sge {\n", "struct ibv_sge {\n\tuint64_t more;\n",
			"wrong: field ibv_sge.addr: offset is 8 in these headers, 0 in Go"},
		{"44.0", "int ibv_close_device(struct ibv_context *context);", "",
			"wrong: function ibv_close_device: not in these headers: removed"},
		{"65.0", "int ibv_close_device(struct ibv_context *context);",
			"void ibv_close_device(struct ibv_context *context);",
			"wrong: function ibv_close_device: prototype is void"},
	} {
		dir := headersOf(t, test.release)
		change(t, dir, test.old, test.new)
		code, out, errs := command("-only", "headers", "-pkg", "ibv", "-I", dir)
		assert.Equal(t, 1, code, "%s%s", out, errs)
		assert.Contains(t, out, test.want)
		assert.Contains(t, out, "\nincompatible: ")
	}
}

func TestReleaseIsStated(t *testing.T) {
	dir := headersOf(t, "33.2")
	change(t, dir, "int ibv_close_device(struct ibv_context *context);", "")
	code, out, _ := command("-only", "headers", "-pkg", "ibv", "-release", "28.0", "-I", dir)
	assert.Equal(t, 0, code, out)
	assert.Contains(t, out, "of rdma-core 28.0;")
}

func TestJSON(t *testing.T) {
	code, out, errs := command("-format", "json", "-I", headersOf(t, "44.0"))
	require.Equal(t, 0, code, errs)
	var a verbsabi.Answer
	require.NoError(t, json.Unmarshal([]byte(out), &a))
	assert.Equal(t, verbsabi.Compatible, a.Verdict)
	assert.Equal(t, "44.0", a.Headers[0].Release)
	assert.NotEmpty(t, a.Headers[0].Differences)
	assert.Len(t, a.Headers[0].Packages, 6)
	assert.NotEmpty(t, a.Headers[0].Report.Facts)
}

// TestBaselineAndPolicy: an incompatible installation passes once a baseline or a policy accepts its differences. A
// missing baseline is an error.
func TestBaselineAndPolicy(t *testing.T) {
	dir := headersOf(t, "44.0")
	change(t, dir, "struct ibv_sge {\n", "struct ibv_sge {\n\tuint64_t more;\n")
	check := func(args ...string) (int, string, string) {
		return command(append([]string{"-only", "headers", "-pkg", "ibv", "-I", dir}, args...)...)
	}
	baseline, sarif := filepath.Join(t.TempDir(), "baseline"), filepath.Join(t.TempDir(), "sarif")
	code, _, errs := check("-baseline", baseline)
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "write it with -write-baseline")
	code, _, _ = check("-write-baseline", baseline)
	assert.Equal(t, 1, code)
	code, out, errs := check("-baseline", baseline, "-write", "sarif="+sarif)
	assert.Equal(t, 0, code, "%s%s", out, errs)
	assert.Contains(t, out, "  accepted: field ibv_sge.addr: offset is 8 in these headers, 0 in Go")
	assert.Contains(t, out, "since the baseline: 0 new differences, 0 gone")
	text, err := os.ReadFile(sarif)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"justification": "in the baseline"`)
	change(t, dir, "IBV_WR_SEND,\n", "IBV_WR_SEND = 9,\n")
	code, out, _ = check("-baseline", baseline)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "  new  : enumerator IBV_WR_SEND value\n")

	policy := filepath.Join(t.TempDir(), "policy")
	require.NoError(t, os.WriteFile(policy, []byte("enumerator IBV_WR_* value\t9999-01-01\tnever sends\n"), 0o644))
	code, out, errs = check("-baseline", baseline, "-policy", policy)
	assert.Equal(t, 0, code, "%s%s", out, errs)
	require.NoError(t, os.WriteFile(policy, []byte("enumerator IBV_WR_* value\t2020-01-01\tnever sends\n"), 0o644))
	code, _, errs = check("-policy", policy)
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "expired on 2020-01-01")
}

// TestInstalled checks the installed headers and libraries, if any.
func TestInstalled(t *testing.T) {
	code, out, errs := command()
	if code == 2 {
		t.Skip(errs)
	}
	assert.Equal(t, 0, code, "%s%s", out, errs)
	assert.NotContains(t, out, "wrong")
	code, _, errs = command("-require", "ibv,libibverbs.so.1,libnone.so.1")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "libnone.so.1 is required and was not checked")
}

func TestLibrariesAlone(t *testing.T) {
	code, _, errs := command("-only", "libraries", "-L", t.TempDir()+":"+t.TempDir())
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "install libibverbs1")
}

// cached counts the pinned releases with cached headers.
func cached(t *testing.T) int {
	t.Helper()
	lock, err := fetch.ParseLock("headers.lock", headers.Lock())
	require.NoError(t, err)
	n := 0
	for _, r := range lock.Releases {
		if _, err := os.Stat(filepath.Join(cacheDir, r.File(), "include")); err == nil {
			n++
		}
	}
	return n
}

func TestCache(t *testing.T) {
	headersOf(t, "65.0")
	code, out, errs := command("-cache", cacheDir, "-require", runtime.GOARCH, "-minimum-releases",
		strconv.Itoa(cached(t)))
	assert.Equal(t, 0, code, "every release with cached headers was checked: %s%s", out, errs)
	assert.Contains(t, out, "rdma-core 65.0  "+runtime.GOARCH)
	// the remaining flags need only one release
	one := t.TempDir()
	release, err := filepath.Abs(filepath.Join(cacheDir, "65.0"))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(release, filepath.Join(one, "65.0")))
	code, _, errs = command("-cache", one, "-require", runtime.GOARCH+",pdp11")
	assert.Equal(t, 2, code)
	assert.Equal(t, "verbsabi: could not check: pdp11 is required and was not checked: no model read\n",
		errs)
	code, _, errs = command("-cache", one, "-require", runtime.GOARCH, "-minimum-releases", "99")
	assert.Equal(t, 2, code)
	assert.Regexp(t,
		"^verbsabi: could not check: "+runtime.GOARCH+" was checked against 1 releases, fewer than the 99 "+
			"required: ",
		errs)
}

func TestDump(t *testing.T) {
	code, out, errs := command("-dump")
	assert.Equal(t, 0, code, errs)
	for _, line := range []string{"ibv_send_wr,wr.rdma.rkey,48,4", "ibv_send_wr,,0,128", "ibv_wr_opcode,IBV_WR_SEND,2",
		"rdma_cm_id,qp,24,8", "mlx5_wqe_ctrl_seg,,0,16", "efadv_qp_init_attr,,0,24",
		"mlx4dv_obj_type,MLX4DV_OBJ_QP,1"} {
		assert.Contains(t, out, "\n"+line+"\n")
	}
	_, out, _ = command("-dump", "-pkg", "efadv,mlx4dv")
	assert.Contains(t, out, "\nefadv_qp_init_attr,,0,24\n")
	assert.NotContains(t, out, "ibv_send_wr,")
}

// needCompiler skips a test on a machine without a C compiler.
func needCompiler(t *testing.T) {
	if _, err := verbsabi.FindCompiler(runtime.GOARCH); errors.Is(err, verbsabi.ErrNoCompiler) {
		t.Skip(err)
	}
}

func TestCouldNotCheck(t *testing.T) {
	needCompiler(t)
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	empty := t.TempDir()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-I", empty}, "name the directory that holds infiniband/verbs.h with -I"},
		{[]string{"-release", "abc"}, "of rdma-core; use a number such as 65.0"},
		{[]string{"-cc", "goverbs-no-such-compiler"}, "use another C compiler"},
		{[]string{"-cc", "true"}, "name one with -I"},
		{[]string{"-target", "wasm"}, "no C compiler known for target wasm"},
		{[]string{"-dump", "-target", other}, "build it with GOARCH=" + other},
		{[]string{"-cache", empty}, "nothing could be checked"},
		{[]string{"-pkg", "ibv,mlx6dv"}, `unknown package "mlx6dv"; use one of ibv, rdmacm`},
		{[]string{"-only", "pages"}, "-only must be headers, libraries or layouts"},
		{[]string{"-no-such-flag"}, "flag provided but not defined"},
		{[]string{"-minimum-releases", "3"}, "needs -cache and -require"},
		{[]string{"-cache", cacheDir, "-minimum-releases", "3"}, "needs -cache and -require"},
		{[]string{"-cache", cacheDir, "-require", ",", "-minimum-releases", "3"}, "needs -cache and -require"},
		{[]string{"-require", "ibv", "-minimum-releases", "3"}, "needs -cache and -require"},
		{[]string{"-cache", cacheDir, "-require", other, "-minimum-releases", "0"},
			"want at least 1"},
		{[]string{"-cache", cacheDir, "-require", other, "-minimum-releases", "-1"},
			"want at least 1"},
		{[]string{"headers"}, "open headers: no such file"},
		{[]string{"headers", "-host", "root"}, `unexpected arguments ["-host" "root"]; options go before PROGRAM`},
		{[]string{"-host", empty}, "-host needs a program"},
	} {
		code, out, errs := command(test.args...)
		assert.Equal(t, 2, code, "%v: %s", test.args, out)
		assert.Contains(t, errs, test.want)
	}
}

func TestHelp(t *testing.T) {
	code, _, errs := command("-h")
	assert.Equal(t, 0, code)
	assert.Contains(t, errs, "Exit codes: 0 identical or compatible, 1 incompatible, 2 could not check")
	for _, name := range []string{"-dump", "-I ", "-cc ", "-target ", "-release ", "-cache ", "-pkg ",
		"-only ", "-L ", "-require ", "-minimum-releases ", "-format ", "-write ", "-policy ", "-baseline ",
		"-write-baseline "} {
		assert.True(t, strings.Contains(errs, name), name)
	}
}

// TestPageForUsers compares flags and exit codes in the user page with the command.
func TestPageForUsers(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/abi-ci.md")
	require.NoError(t, err)
	_, _, help := command("-h")
	flags := regexp.MustCompile(` (-[a-zA-Z]+)\b`)
	seen := 0
	for _, line := range regexp.MustCompile("(?:go tool |`)verbsabi( -[^|`\n]*)").FindAllStringSubmatch(string(page),
		-1) {
		for _, m := range flags.FindAllStringSubmatch(line[1], -1) {
			seen++
			assert.Contains(t, help, "\n  "+m[1], "%s", line[0])
		}
	}
	assert.Greater(t, seen, 8)
	for _, code := range []string{"| 0 | identical, or compatible", "| 1 | incompatible", "| 2 | could not check"} {
		assert.Contains(t, string(page), code)
	}
}

// TestOddFiles checks that endless or huge files are rejected by name.
func TestOddFiles(t *testing.T) {
	needCompiler(t)
	for name, make := range map[string]func(path string) error{
		"a named pipe, not a regular file": func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"a device, not a regular file":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"larger than the limit of 64 MiB": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 65<<20))
		},
	} {
		for flag, file := range map[string]string{"-I": "infiniband/verbs.h", "-L": "libibverbs.so.1"} {
			dir := t.TempDir()
			path := filepath.Join(dir, file)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, make(path))
			only := map[string]string{"-I": "headers", "-L": "libraries"}[flag]
			code, out, errs := command("-only", only, flag, dir)
			assert.Equal(t, 2, code, "%s %s: %s", flag, name, out)
			assert.Contains(t, errs, path)
			assert.Contains(t, errs, name)
		}
	}
}

// TestOddIncludedFiles checks that the same limits apply to files that only the C compiler would open.
func TestOddIncludedFiles(t *testing.T) {
	headersOf(t, "65.0")
	needCompiler(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(cacheDir, "65.0", "include"))))
	path := filepath.Join(dir, "linux", "types.h")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, syscall.Mkfifo(path, 0o644))
	code, out, errs := command("-only", "headers", "-pkg", "ibv", "-I", dir)
	assert.Equal(t, 2, code, out)
	assert.Contains(t, errs, "types.h: a named pipe, not a regular file")
}

// TestControlCharacters checks that text of a header cannot send control sequences to the terminal.
func TestControlCharacters(t *testing.T) {
	headersOf(t, "65.0")
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(cacheDir, "65.0", "include"))))
	name := filepath.Join(dir, "infiniband/verbs.h")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	text = append([]byte("#include \"\x1b]0;x\u009b.h\"\n"), text...)
	require.NoError(t, os.WriteFile(name, text, 0o600))
	code, _, errs := command("-I", dir, "-only", "headers", "-pkg", "ibv")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "]0;x")
	assert.NotContains(t, errs, "\x1b")
	assert.NotContains(t, errs, "\u009b")
}

// TestDWARF: the types in debug information use the exit codes, formats, policies and baselines of headers.
func TestDWARF(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	compile := func(name, text string) string {
		path := filepath.Join(dir, name)
		cmd := exec.Command("gcc", "-g", "-shared", "-fPIC", "-o", path, "-x", "c", "-")
		cmd.Stdin = strings.NewReader(text + "\nint f(struct ibv_sge *s) { return s->lkey; }\n")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return path
	}
	same := compile("same", "#include <stdint.h>\nstruct ibv_sge { uint64_t addr; uint32_t length, lkey; };")
	other := compile("other", "#include <stdint.h>\nstruct ibv_sge { uint64_t addr; uint32_t lkey, length; };")

	code, out, errs := command("-only", "layouts", "-dwarf", same, "-require", "ibv,ibv_sge")
	assert.Equal(t, 0, code, "%s%s", out, errs)
	assert.Contains(t, out, "\nidentical: the types in "+same+" are of rdma-core ")
	assert.Regexp(t, `\nnot checked: \d+ types of these packages, which `+same+` lacks; -v lists them\n`, out)
	code, _, errs = command("-only", "layouts", "-dwarf", same, "-require", "ibv_wc")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "ibv_wc is required and was not checked: "+same+" has no debug information of it")

	junit, base, policy := filepath.Join(dir, "junit"), filepath.Join(dir, "base"), filepath.Join(dir, "policy")
	code, out, errs = command("-only", "layouts", "-dwarf", other, "-write", "junit="+junit, "-write-baseline", base)
	assert.Equal(t, 1, code, "%s%s", out, errs)
	assert.Contains(t, out, "wrong: field ibv_sge.lkey: offset is 8 in this debug information, 12 in Go: the member moved\n")
	report, err := os.ReadFile(junit)
	require.NoError(t, err)
	assert.Contains(t, string(report), `<testcase name="field ibv_sge.lkey offset" classname="types of rdma-core">`)
	code, out, _ = command("-only", "layouts", "-dwarf", other, "-baseline", base)
	assert.Equal(t, 0, code, out)
	require.NoError(t, os.WriteFile(policy, []byte("field ibv_sge.*\t2999-01-01\ttest\n"), 0o644))
	code, out, _ = command("-only", "layouts", "-dwarf", other, "-policy", policy)
	assert.Equal(t, 0, code, out)

	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "layouts"}, "-only layouts needs -dwarf or -btf"},
		{[]string{"-only", "headers", "-dwarf", same}, "use -only layouts"},
		{[]string{"-only", "libraries", "-btf", same}, "use -only layouts"},
		{[]string{"-I", dir, "-dwarf", same}, "omit -I"},
		{[]string{"-debug-dir", dir}, "-debug-dir needs -dwarf"},
		{[]string{"-only", "layouts", "-dwarf", junit}, "bad magic number"},
		{[]string{"-btf", same}, "no section .BTF"},
	} {
		code, _, errs := command(test.args...)
		assert.Equal(t, 2, code, test.args)
		assert.Contains(t, errs, test.want)
	}
}

// TestProgram checks this test program against an empty host and an empty image.
func TestProgram(t *testing.T) {
	executable, err := os.Executable()
	require.NoError(t, err)
	if runtime.GOOS != "linux" {
		t.Skip("checks programs for Linux")
	}
	code, out, errs := command("-host", t.TempDir(), executable)
	assert.Contains(t, out, "program "+executable+" (")
	assert.Empty(t, errs)
	if strings.Contains(out, "wrong") { // a static test program needs nothing
		assert.Equal(t, 1, code)
		assert.Contains(t, out, ": no such library for "+runtime.GOARCH+", but ")
		assert.Contains(t, out, "\nincompatible: the host lacks ")
	}
	image := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, os.WriteFile(image, make([]byte, 1024), 0o644))
	code, same, errs := command("-host", image, executable)
	assert.Equal(t, strings.Contains(same, "wrong"), code == 1)
	assert.Equal(t, out, same)
	assert.Empty(t, errs)
}
