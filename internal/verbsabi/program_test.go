// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// buildProgram builds rc-pingpong of examples for a target.
func buildProgram(t *testing.T, target string, flags ...string) string {
	t.Helper()
	return buildExample(t, "rc-pingpong", target, flags...)
}

// buildExample builds a program of examples for a target.
func buildExample(t *testing.T, name, target string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	args := append([]string{"build", "-buildvcs=false", "-o", out}, append(flags, "../../examples/"+name)...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+target, "CGO_ENABLED=0", "GOFLAGS=")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// onlyWithC skips a test on machines for which headers/cache has no libraries.
func onlyWithC(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the recorded libraries are for linux/amd64")
	}
}

const libDir = "usr/lib/x86_64-linux-gnu"

// newHost returns a root file system with the C library of this machine, and the libraries of a pinned release of
// rdma-core if there is one.
func newHost(t *testing.T, release string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, libDir)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Symlink("/usr/lib", filepath.Join(root, "lib")), "absolute, for a process in the root")
	require.NoError(t, os.Symlink("lib/x86_64-linux-gnu", filepath.Join(root, "usr/lib64")))
	require.NoError(t, os.Symlink("usr/lib64", filepath.Join(root, "lib64")))
	files := map[string]string{}
	for _, name := range []string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"} {
		for _, from := range []string{"/lib/x86_64-linux-gnu", "/lib64", "/usr/lib"} {
			if _, err := os.Stat(filepath.Join(from, name)); err == nil {
				files[name] = filepath.Join(from, name)
				break
			}
		}
	}
	if len(files) != 4 {
		t.Skip("this machine has no GNU C library where Debian has it")
	}
	if release != "" {
		from := filepath.Join("../../headers/cache", release, "lib/libibverbs.so.1")
		if _, err := os.Stat(from); err != nil {
			t.Skip("headers/cache is empty; make headers")
		}
		files["libibverbs.so.1"] = from
		for _, name := range []string{"libnl-3.so.200", "libnl-route-3.so.200"} { // what libibverbs is linked with
			buildShared(t, filepath.Join(dir, name), "int "+strings.NewReplacer("-", "_", ".", "_").Replace(name)+";\n",
				"libnl_3 { *; };\n")
		}
	}
	for name, from := range files {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o755))
	}
	return root
}

// buildShared builds a shared library from C and a version script.
func buildShared(t *testing.T, file, text, versions string) {
	t.Helper()
	cc, err := FindCompiler("amd64")
	if err != nil {
		t.Skip(err)
	}
	script := filepath.Join(t.TempDir(), "versions")
	require.NoError(t, os.WriteFile(script, []byte(versions), 0o644))
	cmd := exec.Command(cc[0], append(cc[1:], "-shared", "-fPIC", "-nostdlib", "-Wl,--version-script="+script,
		"-Wl,-soname="+filepath.Base(file), "-x", "c", "-", "-o", file)...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// checkProgram checks a program on a host, and returns the verdict and the answer.
func checkProgram(t *testing.T, program, host string) (bool, *Answer) {
	t.Helper()
	var out bytes.Buffer
	ok, err := Run(context.Background(), Options{Program: program, Host: host, Format: "json", Target: "amd64"}, &out)
	require.NoError(t, err)
	var a Answer
	require.NoError(t, json.Unmarshal(out.Bytes(), &a))
	require.NotNil(t, a.Program)
	for format := range formats {
		assert.NoError(t, a.write(&out, format, true), format)
	}
	return ok, &a
}

// failures returns the findings that make an answer incompatible.
func failures(a *Answer) (all []string) {
	for _, f := range a.Findings {
		if f.Fails() {
			all = append(all, f.ID)
		}
	}
	return all
}

// TestProgramFunctions compares the functions found in a program with the variables that Go's linker kept, as listed by
// go tool nm. It checks a program with symbols, one without, and a position-independent one.
func TestProgramFunctions(t *testing.T) {
	plain := buildProgram(t, "amd64")
	out, err := exec.Command("go", "tool", "nm", plain).Output()
	require.NoError(t, err)
	kept := map[string]bool{} // each function has a variable fnNAME, whose name is the Go function's
	for _, m := range regexp.MustCompile(`(?m)generated/libibverbs\.fn([A-Za-z0-9]+)$`).FindAllSubmatch(out, -1) {
		kept[string(m[1])] = true
	}
	require.NotEmpty(t, kept)
	var want []string
	for name := range goNames(t) {
		if kept[goNames(t)[name]] {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	require.Len(t, want, len(kept))
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}, {"-buildmode=pie", "-ldflags=-s -w"}} {
		p, err := readProgram(buildProgram(t, "amd64", flags...))
		require.NoError(t, err)
		require.Len(t, p.Libraries, 1, "%v", flags)
		assert.Equal(t, want, p.Libraries[0].Functions, "%v", flags)
		assert.Equal(t, "libibverbs.so.1", p.Libraries[0].Name)
		assert.Contains(t, want, "ibv_create_qp")
		assert.NotContains(t, want, "ibv_create_flow")
	}
	targets := []string{"arm64"}
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		targets = append(targets, "riscv64", "ppc64le", "loong64")
	}
	for _, target := range targets {
		p, err := readProgram(buildProgram(t, target, "-ldflags=-s -w"))
		require.NoError(t, err)
		assert.Equal(t, target, p.Target)
		require.Len(t, p.Libraries, 1, target)
		assert.Subset(t, p.Libraries[0].Functions, []string{"ibv_create_qp", "ibv_reg_mr_iova2"}, target)
	}
}

// goNames returns the Go names of the functions of libibverbs, by C name, from the source of the package.
func goNames(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../generated/libibverbs/function.go")
	require.NoError(t, err)
	names := map[string]string{}
	for _, m := range regexp.MustCompile(`(?s)\tfn(\w+) = &runtime\.Function\{.*?Name: +"(\w+)"`).
		FindAllSubmatch(text, -1) {
		names[string(m[2])] = string(m[1])
	}
	return names
}

// TestBuildInfo compares build information with that of debug/buildinfo, and checks that damage is an error.
func TestBuildInfo(t *testing.T) {
	own, err := os.Executable()
	require.NoError(t, err)
	for _, path := range []string{own, buildProgram(t, "arm64", "-ldflags=-s -w")} {
		want, err := buildinfo.ReadFile(path)
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		f, err := elf.NewFile(bytes.NewReader(data))
		require.NoError(t, err)
		got, err := readBuildInfo(f)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		at := bytes.Index(data, []byte("\xff Go buildinf:\x08\x02"))
		copy(data[at+32:], "\xff\xff\xff\x7f") // the length of the version
		_, err = readBuildInfo(f)
		assert.ErrorContains(t, err, "damaged")
		data[at] = 0
		_, err = readBuildInfo(f)
		assert.ErrorContains(t, err, "none found")
	}
}

func TestProgramErrors(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("no program"), 0o644))
	own, err := os.Executable()
	require.NoError(t, err)
	for name, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file",
		dir:                        "not a regular file",
		text:                       "is not a program for Linux",
		own:                        "",
		"/bin/sh":                  "has no build information of Go",
	} {
		_, err := readProgram(name)
		if want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorContains(t, err, want)
	}
	for want, o := range map[string]Options{
		"-host needs a program": {Host: "/"},
		"omit the options":      {Program: own, Include: "/usr/include"},
		"unknown format":        {Program: own, Format: "x"},
		"the host:":             {Program: own, Host: filepath.Join(dir, "none")},
	} {
		_, err := Run(context.Background(), o, &bytes.Buffer{})
		assert.ErrorContains(t, err, want)
	}
}

// TestProgramReleases checks a program on hosts with the libraries of each pinned release.
func TestProgramReleases(t *testing.T) {
	onlyWithC(t)
	program := buildProgram(t, "amd64", "-ldflags=-s -w")
	for _, release := range []string{"33.2", "44.0"} {
		ok, a := checkProgram(t, program, newHost(t, release))
		assert.True(t, ok, "%s: %v", release, failures(a))
		assert.Empty(t, failures(a))
		require.Len(t, a.Libraries, 1)
		assert.Equal(t, "/"+libDir+"/libibverbs.so.1", a.Libraries[0].Path)
		assert.Equal(t, release, a.Libraries[0].Release, "the only recorded release with these functions")
		assert.Contains(t, a.Libraries[0].Bound, Symbol{"ibv_create_qp", "IBVERBS_1.1"})
		require.Len(t, a.Headers, 1, "the layouts of that release")
		assert.Equal(t, release, a.Headers[0].Release)
		assert.Equal(t, Compatible, a.Headers[0].Verdict)
		assert.Equal(t, []string{"ibv"}, a.Headers[0].Packages)
	}
}

// TestProgramLacks checks hosts on which something is missing.
func TestProgramLacks(t *testing.T) {
	onlyWithC(t)
	program := buildProgram(t, "amd64")
	in := func(root, name string) string { return filepath.Join(root, libDir, name) }
	for name, c := range map[string]struct {
		change func(t *testing.T, root string)
		want   []string
	}{
		"library":    {func(t *testing.T, root string) { require.NoError(t, os.Remove(in(root, "libibverbs.so.1"))) }, []string{"library libibverbs.so.1"}},
		"dependency": {func(t *testing.T, root string) { require.NoError(t, os.Remove(in(root, "libnl-3.so.200"))) }, []string{"library libnl-3.so.200"}},
		"loader": {func(t *testing.T, root string) { require.NoError(t, os.Remove(in(root, "ld-linux-x86-64.so.2"))) },
			[]string{"library /lib64/ld-linux-x86-64.so.2", "library ld-linux-x86-64.so.2"}},
		"version": {func(t *testing.T, root string) {
			buildShared(t, in(root, "libc.so.6"), "int x;\n", "GLIBC_2.2.5 { *; };\n")
		}, nil},
		"text": {func(t *testing.T, root string) {
			require.NoError(t, os.WriteFile(in(root, "libibverbs.so.1"), []byte("GROUP ( libibverbs.so )"), 0o644))
		}, []string{"library libibverbs.so.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := newHost(t, "44.0")
			c.change(t, root)
			ok, a := checkProgram(t, program, root)
			assert.False(t, ok)
			if c.want != nil {
				assert.Equal(t, c.want, failures(a))
				return
			}
			assert.Contains(t, failures(a), "version libibverbs.so.1 GLIBC_2.14")
		})
	}
}

// TestProgramSymbols checks a library without one of the functions, and one with a different version of a function.
func TestProgramSymbols(t *testing.T) {
	onlyWithC(t)
	program := buildProgram(t, "amd64")
	p, err := readProgram(program)
	require.NoError(t, err)
	var text, global strings.Builder
	ok, a := checkProgram(t, program, newHost(t, "44.0"))
	require.True(t, ok)
	versions := map[string]string{}
	for _, s := range a.Libraries[0].Bound {
		versions[s.Name] = s.Version
	}
	for _, name := range p.Libraries[0].Functions {
		if versions[name] != "" && name != "ibv_create_qp" && name != "ibv_dealloc_pd" {
			text.WriteString("void " + name + "(void) {}\n")
			global.WriteString(versions[name] + " { " + name + "; };\n")
		}
	}
	text.WriteString("void ibv_dealloc_pd(void) {}\n")
	global.WriteString("IBVERBS_9.9 { ibv_dealloc_pd; };\n")
	root := newHost(t, "")
	buildShared(t, filepath.Join(root, libDir, "libibverbs.so.1"), text.String(), mergeVersions(global.String()))
	ok, a = checkProgram(t, program, root)
	assert.False(t, ok)
	assert.Equal(t, []string{"symbol libibverbs.so.1 ibv_create_qp", "symbol libibverbs.so.1 ibv_dealloc_pd"}, failures(a))
	assert.Contains(t, a.Findings[1].Text, "its version is IBVERBS_9.9")
	assert.Empty(t, a.Headers)
	require.Len(t, a.NotChecked, 1)
	assert.Equal(t, "layouts of rdma-core", a.NotChecked[0].Name)
	assert.Contains(t, a.NotChecked[0].Why, "the host has release unknown")
}

// mergeVersions joins the nodes of a version script that have the same name.
func mergeVersions(script string) string {
	nodes := map[string]string{}
	for _, m := range regexp.MustCompile(`(\S+) \{ (\w+; )\};`).FindAllStringSubmatch(script, -1) {
		nodes[m[1]] += m[2]
	}
	var b strings.Builder
	for name, all := range nodes {
		b.WriteString(name + " { global: " + all + "};\n")
	}
	return b.String()
}

// TestProgramOfOther checks a program for a different target, and one that calls no library.
func TestProgramOfOther(t *testing.T) {
	onlyWithC(t)
	root := newHost(t, "44.0")
	ok, a := checkProgram(t, buildProgram(t, "arm64"), root)
	assert.False(t, ok)
	assert.Equal(t, "arm64", a.Program.Target)
	i := slices.IndexFunc(a.Findings, func(f Finding) bool { return f.ID == "library libibverbs.so.1" })
	require.GreaterOrEqual(t, i, 0)
	assert.Contains(t, a.Findings[i].Text, "/"+libDir+"/libibverbs.so.1 is for EM_X86_64", "/lib is /usr/lib")

	static := buildProgram(t, "amd64", "-tags=goverbs_static")
	ok, a = checkProgram(t, static, t.TempDir())
	assert.True(t, ok)
	assert.True(t, a.Program.Static)
	assert.Empty(t, a.Program.Loader)
	assert.Equal(t, Identical, a.Verdict)
	assert.Empty(t, a.Findings)
}

// TestProgramDirectories checks that libraries are found only in the directories of the loader's configuration.
func TestProgramDirectories(t *testing.T) {
	onlyWithC(t)
	program := buildProgram(t, "amd64")
	root := newHost(t, "44.0")
	opt := filepath.Join(root, "opt/rdma")
	require.NoError(t, os.MkdirAll(opt, 0o755))
	require.NoError(t, os.Rename(filepath.Join(root, libDir, "libibverbs.so.1"), filepath.Join(opt, "libibverbs.so.1.14.44.0")))
	require.NoError(t, os.Symlink("../../../opt/rdma/libibverbs.so.1.14.44.0", filepath.Join(opt, "libibverbs.so.1")),
		".. of the root is the root")
	ok, a := checkProgram(t, program, root)
	assert.False(t, ok)
	assert.Equal(t, []string{"library libibverbs.so.1"}, failures(a))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc/ld.so.conf.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/ld.so.conf"), []byte("include ld.so.conf.d/*.conf\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/ld.so.conf.d/rdma.conf"), []byte("# ours\n/opt/rdma # too\n"), 0o644))
	ok, a = checkProgram(t, program, root)
	assert.True(t, ok, "%v", failures(a))
	assert.Equal(t, "/opt/rdma/libibverbs.so.1.14.44.0", a.Libraries[0].Path)
	assert.Equal(t, "44.0", a.Libraries[0].Release, "of the file's name")
}

// TestProgramPackage checks that the version of the Debian package determines the layouts.
func TestProgramPackage(t *testing.T) {
	onlyWithC(t)
	program := buildProgram(t, "amd64")
	root := newHost(t, "44.0")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg"), 0o755))
	status := filepath.Join(root, "var/lib/dpkg/status")
	require.NoError(t, os.WriteFile(status, []byte("Package: other\nVersion: 1.0-1\n\nPackage: libibverbs1\nStatus: install "+
		"ok installed\nVersion: 50.0-2ubuntu1\n"), 0o644))
	ok, a := checkProgram(t, program, root)
	assert.True(t, ok)
	assert.Equal(t, "50.0", a.Libraries[0].Release)
	assert.Empty(t, a.Headers)
	assert.Equal(t, []Absent{{"layouts of rdma-core",
		"the host has release 50.0; its layouts are known for 33.2, 44.0, 56.1, 65.0"}}, a.NotChecked)
	assert.ErrorContains(t, a.Require([]string{"ibv"}), "ibv is required and was not checked: the host has release 50.0")
	assert.ErrorContains(t, a.Require([]string{"librpma.so.0"}), "the program calls none of its functions")
}
