// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"fmt"
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

	"github.com/goverbs/goverbs/gen/model"
)

// compileDebug compiles the packages' headers to a shared library with debug information about all types.
func compileDebug(t *testing.T, cc, include string, headers []string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("no %s: %v", cc, err)
	}
	var text strings.Builder
	for _, h := range headers {
		fmt.Fprintf(&text, "#include <%s>\n", h)
	}
	text.WriteString("int goverbs_none;\n")
	path := filepath.Join(t.TempDir(), "libdebug.so")
	args := append([]string{"-std=gnu11", "-w", "-g", "-shared", "-fPIC", "-fno-eliminate-unused-debug-types", "-o", path,
		"-isystem", include, "-x", "c", "-"}, flags...)
	cmd := exec.Command(cc, args...)
	cmd.Stdin = strings.NewReader(text.String())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// dwarfPackages are the packages whose headers the tests compile.
var dwarfPackages = []string{"ibv", "rdmacm", "mlx5dv", "mlx4dv", "efadv"}

func question(t *testing.T, names ...string) Question {
	t.Helper()
	packages, err := Packages(names...)
	require.NoError(t, err)
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	return Question{Packages: packages, Target: runtime.GOARCH, Primary: primary, Recorded: all}
}

// askHeadersOf returns the compiler's answer about an include directory.
func askHeadersOf(t *testing.T, include string, names ...string) *Include {
	t.Helper()
	q := question(t, names...)
	cc, err := FindCompiler(runtime.GOARCH)
	if err != nil {
		t.Skip(err)
	}
	q.CC, q.Include, q.Only = cc, include, Headers
	a, err := Ask(context.Background(), q)
	require.NoError(t, err)
	require.Len(t, a.Headers, 1)
	require.Empty(t, a.Headers[0].Report.Mismatches)
	return a.Headers[0]
}

// askDebugOf returns the answer about the debug information of files.
func askDebugOf(t *testing.T, files []string, names ...string) *Include {
	t.Helper()
	q := question(t, names...)
	q.DWARF, q.Only = files, Layouts
	a, err := Ask(context.Background(), q)
	require.NoError(t, err)
	require.Len(t, a.Headers, 1)
	return a.Headers[0]
}

// layoutDifferences lists the differences of types, except for types that debug lacks.
func layoutDifferences(t *testing.T, h, debug *Include) []string {
	absent := map[string]bool{} // enumerators without their enumeration, and incomplete records
	for _, r := range question(t).Primary.Of(h.Project)[0].Headers {
		for _, rec := range r.Records {
			absent[rec.CName()] = rec.Kind == model.Incomplete
		}
		for _, e := range r.Enums {
			for _, n := range e.Enumerators {
				absent[n.Name] = !debug.checked.hasEnum(&e)
			}
		}
	}
	var all []string
	for _, d := range h.Differences {
		gone := d.Fact == "declaration" && d.Headers == ""
		switch d.Kind {
		case RecordItem, EnumItem:
			if gone {
				assert.True(t, absent["struct "+d.Name] || slices.Contains(debug.NotChecked, "struct "+d.Name) ||
					slices.Contains(debug.NotChecked, "enum "+d.Name), "%s", d)
				continue
			}
		case EnumeratorItem:
			if gone && absent[d.Path] {
				continue
			}
		case FieldItem:
		default:
			continue
		}
		all = append(all, fmt.Sprintf("%s %s: %s in Go, %s here, %t, %s", d.Kind, d.Item.label(), d.Want, d.Headers,
			d.Compatible, d.Since))
	}
	slices.Sort(all)
	return all
}

// equalLines compares two lists and prints only the differences.
func equalLines(t *testing.T, want, have []string) {
	t.Helper()
	for _, line := range want {
		assert.True(t, slices.Contains(have, line), "missing: %s", line)
	}
	for _, line := range have {
		assert.True(t, slices.Contains(want, line), "too many: %s", line)
	}
}

// TestDWARFAgreesWithCompiler: for the headers of every release, debug information gives the same differences as the
// headers and the C compiler.
func TestDWARFAgreesWithCompiler(t *testing.T) {
	for _, r := range question(t).Recorded.Of("rdma-core") {
		t.Run(r.Name, func(t *testing.T) {
			include := realHeaders(t, r.Name)
			compiled := askHeadersOf(t, include, dwarfPackages...)
			compilers := [][]string{{"gcc", "-gdwarf-5"}}
			if r.Name == compiled.Primary {
				compilers = append(compilers, []string{"gcc", "-gdwarf-4", "-gz"}, []string{"clang"})
			}
			for _, cc := range compilers {
				t.Run(strings.Join(cc, " "), func(t *testing.T) {
					path := compileDebug(t, cc[0], include, headersOf(question(t, dwarfPackages...).Packages), cc[1:]...)
					debug := askDebugOf(t, []string{path}, dwarfPackages...)
					assert.Equal(t, r.Name, debug.Release)
					assert.Equal(t, compiled.Packages, debug.Packages)
					if r.Name == debug.Primary {
						assert.Equal(t, Identical, debug.Verdict)
						assert.Empty(t, debug.NotChecked)
					}
					assert.NotEqual(t, Incompatible, debug.Verdict)
					equalLines(t, layoutDifferences(t, compiled, debug), layoutDifferences(t, debug, debug))
				})
			}
		})
	}
}

// TestDWARFFindsDrift: each change of a header is detected in debug information, as it is by the C compiler.
func TestDWARFFindsDrift(t *testing.T) {
	include := realHeaders(t, "65.0")
	for _, test := range []struct{ name, old, new, want string }{
		{"field added", "\tuint32_t\t\tlkey;\n};", "\tuint32_t\t\tlkey;\n\tuint64_t\t\tmore;\n};", "record ibv_sge size"},
		{"field added in front", "struct ibv_sge {\n", "struct ibv_sge {\n\tuint64_t more;\n", "field ibv_sge.addr offset"},
		{"field removed", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n", "\tuint32_t\t\tlength;\n",
			"field ibv_sge.lkey declaration"},
		{"field renamed", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n", "\tuint32_t\t\tlength;\n\tuint32_t\t\tkey;\n",
			"field ibv_sge.lkey declaration"},
		{"fields swapped", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n", "\tuint32_t\t\tlkey;\n\tuint32_t\t\tlength;\n",
			"field ibv_sge.lkey offset"},
		{"width of a type", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n",
			"\tuint32_t\t\tlength;\n\tuint64_t\t\tlkey;\n", "field ibv_sge.lkey type"},
		{"sign of a type", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n",
			"\tuint32_t\t\tlength;\n\tint32_t\t\tlkey;\n", "field ibv_sge.lkey type"},
		{"bitfield", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n",
			"\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey:24, top:8;\n", "field ibv_sge.lkey type"},
		{"alignment", "\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n};",
			"\tuint32_t\t\tlength;\n\tuint32_t\t\tlkey;\n} __attribute__((aligned(16)));", "record ibv_sge alignment"},
		{"array", "uint8_t\t\t\traw[16];", "uint8_t\t\t\traw[20];", "record ibv_gid size"},
		{"enumerator", "IBV_WR_SEND,\n", "IBV_WR_SEND = 9,\n", "enumerator IBV_WR_SEND value"},
		{"enumerator removed", "\tIBV_WR_SEND,\n", "", "enumerator IBV_WR_SEND declaration"},
		{"size of an enumeration", "\tIBV_QPT_RC = 2,\n", "\tIBV_QPT_RC = 2, IBV_QPT_LARGE = 1ull << 40,\n",
			"enum ibv_qp_type size"},
		{"function pointer", "int\t\t\t(*req_notify_cq)(struct ibv_cq *cq, int solicited_only);",
			"int\t\t\t(*req_notify_cq)(struct ibv_cq *cq, long solicited_only);", "field ibv_context_ops.req_notify_cq type"},
		{"target of a pointer", "struct ibv_send_wr {\n\tuint64_t\t\twr_id;\n\tstruct ibv_send_wr     *next;",
			"struct ibv_send_wr {\n\tuint64_t\t\twr_id;\n\tstruct ibv_recv_wr     *next;", "field ibv_send_wr.next type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "include")
			require.NoError(t, os.CopyFS(dir, os.DirFS(include)))
			name := filepath.Join(dir, "infiniband", "verbs.h")
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, 1, bytes.Count(text, []byte(test.old)))
			require.NoError(t, os.Chmod(name, 0o644))
			require.NoError(t, os.WriteFile(name, bytes.Replace(text, []byte(test.old), []byte(test.new), 1), 0o644))
			compiled := askHeadersOf(t, dir, "ibv")
			flags := []string{"-gdwarf-5"}
			if test.name == "bitfield" { // before version 5, counted from the other end
				flags = append(flags, "-gdwarf-3")
			}
			for _, flag := range flags {
				debug := askDebugOf(t, []string{compileDebug(t, "gcc", dir, []string{"infiniband/verbs.h"}, flag)}, "ibv")
				equalLines(t, layoutDifferences(t, compiled, debug), layoutDifferences(t, debug, debug))
				assert.Equal(t, Incompatible, debug.Verdict)
				found := (&Answer{Headers: []*Include{debug}}).findings()
				assert.True(t, slices.ContainsFunc(found, func(f Finding) bool { return f.ID == test.want && !f.Compatible }),
					"%s: %v", test.want, found)
			}
		})
	}
}

// TestDWARFOfTargets: a cross compiler's debug information gives the same differences as the headers, including
// bitfields of big-endian machines.
func TestDWARFOfTargets(t *testing.T) {
	include := filepath.Join(t.TempDir(), "include")
	require.NoError(t, os.CopyFS(include, os.DirFS(realHeaders(t, "65.0"))))
	name := filepath.Join(include, "infiniband", "verbs.h")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	old, bits := []byte("\tuint32_t\t\tlkey;\n};"), []byte("\tuint32_t\t\tlkey:20, top:5, more:7;\n};")
	require.Equal(t, 1, bytes.Count(text, old))
	require.NoError(t, os.Chmod(name, 0o644))
	require.NoError(t, os.WriteFile(name, bytes.Replace(text, old, bits, 1), 0o644))
	for target := range triplet {
		if target == runtime.GOARCH {
			continue // see TestDWARFFindsDrift
		}
		t.Run(target, func(t *testing.T) {
			q := question(t, "ibv")
			q.Target, q.Include, q.Only = target, include, Headers
			if q.CC, err = completeCompiler(context.Background(), target); err != nil {
				t.Skip(err)
			}
			a, err := Ask(context.Background(), q)
			require.NoError(t, err)
			require.Empty(t, a.Headers[0].Report.Mismatches)
			want := a.Headers[0]
			for _, version := range []string{"-gdwarf-5", "-gdwarf-3"} {
				path := compileDebug(t, q.CC[0], include, []string{"infiniband/verbs.h"}, version, "-nostdlib")
				q.DWARF, q.Include, q.Only = []string{path}, "", Layouts
				a, err := Ask(context.Background(), q)
				require.NoError(t, err)
				lines := layoutDifferences(t, a.Headers[0], a.Headers[0])
				assert.Len(t, lines, 3)
				equalLines(t, layoutDifferences(t, want, a.Headers[0]), lines)
			}
		})
	}
}

// smallDebug compiles a small library with debug information.
func smallDebug(t *testing.T, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "small.c")
	require.NoError(t, os.WriteFile(source, []byte("struct ibv_sge { unsigned long addr; unsigned length, lkey; };\n"+
		"enum ibv_mtu { IBV_MTU_256 = 1 };\nint f(struct ibv_sge *s, enum ibv_mtu m) { return s->lkey + m; }\n"), 0o644))
	path := filepath.Join(dir, "libsmall.so")
	args := []string{"-g", "-shared", "-fPIC", "-Wl,--build-id", "-o", path, source}
	cmd := exec.Command("gcc", append(args, flags...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

func askDWARF(t *testing.T, debugDir, target string, files ...string) (*Answer, error) {
	t.Helper()
	q := question(t, "ibv")
	q.DWARF, q.Only, q.DebugDir, q.Target = files, Layouts, debugDir, target
	return Ask(context.Background(), q)
}

// TestDWARFBuildID: the debug file of a stripped library is found by its build ID.
func TestDWARFBuildID(t *testing.T) {
	path := smallDebug(t)
	id := func() string {
		f, closeFile, err := openLibrary(path)
		require.NoError(t, err)
		defer closeFile()
		return buildID(f)
	}()
	notes, err := exec.Command("readelf", "-n", path).Output()
	require.NoError(t, err)
	assert.Contains(t, string(notes), "Build ID: "+id)
	debugDir := t.TempDir()
	debug := debugFile(debugDir, id)
	require.NoError(t, os.MkdirAll(filepath.Dir(debug), 0o755))
	out, err := exec.Command("objcopy", "--only-keep-debug", path, debug).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("strip", path).CombinedOutput()
	require.NoError(t, err, "%s", out)

	_, err = askDWARF(t, t.TempDir(), runtime.GOARCH, path)
	assert.ErrorIs(t, err, errNoDebug)
	assert.ErrorContains(t, err, "install the debug package, or name its directory with -debug-dir")
	for _, file := range []string{path, debug} {
		a, err := askDWARF(t, debugDir, runtime.GOARCH, file)
		require.NoError(t, err)
		h := a.Headers[0]
		assert.Equal(t, Counts{Structs: 1, Fields: 3, Enumerators: 1}, h.Report.Counts)
		assert.NoError(t, a.Require([]string{"ibv", "ibv_sge", "ibv_mtu"}))
		assert.ErrorContains(t, a.Require([]string{"ibv_wc"}), "ibv_wc is required and was not checked: "+file+
			" has no debug information of it")
		assert.Contains(t, h.NotChecked, "struct ibv_wc")
		assert.NotContains(t, h.NotChecked, "struct ibv_sge")
	}
}

// TestDWARFOfInstalled: libraries without debug information are listed, but are an error only if they are required.
func TestDWARFOfInstalled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Rename(smallDebug(t), filepath.Join(dir, "libibverbs.so.1")))
	require.NoError(t, os.Rename(smallDebug(t, "-g0"), filepath.Join(dir, "libmlx5.so.1")))
	q := question(t)
	q.DWARF, q.Only, q.LibraryDirs, q.DebugDir = []string{InstalledDebug}, Layouts, []string{dir}, t.TempDir()
	a, err := Ask(context.Background(), q)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "libibverbs.so.1"), a.Headers[0].Dir)
	assert.NoError(t, a.Require([]string{"ibv"}))
	assert.ErrorContains(t, a.Require([]string{"mlx5dv"}), "mlx5dv is required and was not checked: ")
	names := []string{}
	for _, n := range a.NotInstalled {
		names = append(names, n.Name)
	}
	assert.Contains(t, names, "debug information of libmlx5.so.1")
	assert.Contains(t, names, "debug information of librdmacm.so.1")
	require.NoError(t, os.Remove(filepath.Join(dir, "libibverbs.so.1")))
	_, err = Ask(context.Background(), q)
	assert.ErrorContains(t, err, "no such library")
}

// TestDWARFRefuses: an error about unreadable debug information contains the reason.
func TestDWARFRefuses(t *testing.T) {
	split := smallDebug(t, "-gsplit-dwarf")
	dwo, _ := filepath.Glob(filepath.Join(filepath.Dir(split), "*.dwo"))
	require.Len(t, dwo, 1)
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, bytes.Repeat([]byte("no ELF file"), 9), 0o644))
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	for _, test := range []struct{ path, target, want string }{
		{split, runtime.GOARCH, "compile without -gsplit-dwarf"},
		{smallDebug(t, "-gsplit-dwarf", "-gdwarf-4"), runtime.GOARCH, "compile without -gsplit-dwarf"},
		{dwo[0], runtime.GOARCH, "is not a shared library for "},
		{smallDebug(t), other, "is not a shared library for " + other},
		{smallDebug(t, "-g0", "-Wl,--build-id=none"), runtime.GOARCH, "no build ID to find it by"},
		{text, runtime.GOARCH, "bad magic number"},
		{filepath.Join(t.TempDir(), "none"), runtime.GOARCH, "no such file"},
	} {
		_, err := askDWARF(t, t.TempDir(), test.target, test.path)
		if assert.Error(t, err, test.path) {
			assert.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, test.path)
		}
	}
}

// TestDWARFOfDwz: types that dwz moved to a shared file are read from that file.
func TestDWARFOfDwz(t *testing.T) {
	if _, err := exec.LookPath("dwz"); err != nil {
		t.Skip(err)
	}
	include := realHeaders(t, "65.0")
	dir, shared := t.TempDir(), filepath.Join(t.TempDir(), "shared.debug")
	var files []string
	for _, name := range []string{"a", "b"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Rename(compileDebug(t, "gcc", include, []string{"infiniband/verbs.h"}, "-gdwarf-4"), path))
		files = append(files, path)
	}
	out, err := exec.Command("dwz", append([]string{"-m", shared}, files...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	h := askDebugOf(t, files[:1], "ibv")
	assert.Equal(t, Identical, h.Verdict)
	assert.Greater(t, h.Report.Counts.Structs, 100)
	require.NoError(t, os.Remove(shared))
	_, err = askDWARF(t, "", runtime.GOARCH, files[0])
	assert.ErrorContains(t, err, "which is missing; install the debug package completely")
}

// TestDWARFAgreesWithPahole: pahole reads the same sizes and offsets from debug information.
func TestDWARFAgreesWithPahole(t *testing.T) {
	path := compileDebug(t, "gcc", realHeaders(t, "65.0"), headersOf(question(t, dwarfPackages...).Packages))
	records, fields := agreesWithPahole(t, askDebugOf(t, []string{path}, dwarfPackages...), "-F", "dwarf", path)
	assert.Greater(t, records, 200)
	assert.Greater(t, fields, 1000)
}

// agreesWithPahole compares pahole's output with the types, and counts the compared records and fields.
func agreesWithPahole(t *testing.T, h *Include, args ...string) (records, fields int) {
	t.Helper()
	if _, err := exec.LookPath("pahole"); err != nil {
		t.Skip(err)
	}
	out, err := exec.Command("pahole", args...).Output()
	require.NoError(t, err)
	for _, text := range strings.Split(string(out), "\n}") {
		text = strings.TrimLeft(text[strings.IndexByte(text+"\n", '\n'):], "\n")
		name, _, _ := strings.Cut(text, " {\n")
		l := h.checked.records[name]
		if l == nil {
			continue
		}
		records++
		if m := paholeSize.FindStringSubmatch(text); m != nil { // pahole does not print it for a union
			assert.Equal(t, fmt.Sprint(l.size), m[1], name)
		} else {
			assert.Equal(t, model.Union, l.rec.Kind, name)
		}
		for _, m := range paholeField.FindAllStringSubmatch(text, -1) {
			f, ok := l.byPath[m[1]]
			if assert.True(t, ok, "%s.%s", name, m[1]) {
				assert.Equal(t, m[2]+" "+m[3], fmt.Sprintf("%d %d", f.offset, f.size), "%s.%s", name, m[1])
				fields++
			}
		}
	}
	return records, fields
}

var (
	paholeSize = regexp.MustCompile(`\n\t/\* size: (\d+),`)
	// a member of the outermost structure, which is indented once and is neither a bitfield nor a function pointer
	paholeField = regexp.MustCompile(`(?m)^\t[a-z_][^\t\n]*?[ *](\w+)(?:\[\d*\])*; +/\* +(\d+) +(\d+) \*/$`)
)

// FuzzDWARF: no file makes the reader panic. Panics of debug/dwarf become errors.
func FuzzDWARF(f *testing.F) {
	path := filepath.Join(f.TempDir(), "small.so")
	for _, flag := range []string{"-gdwarf-5", "-gdwarf-4", "-gdwarf-2"} {
		cmd := exec.Command("gcc", "-g", flag, "-shared", "-nostdlib", "-fPIC", "-o", path, "-x", "c", "-")
		cmd.Stdin = strings.NewReader("struct ibv_sge { union { long addr; int a[2]; }; int length:3; int lkey; };\n" +
			"enum ibv_mtu { IBV_MTU_256 = 1 };\nint f(struct ibv_sge *s, enum ibv_mtu m) { return s->lkey + m; }\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			f.Skipf("%v: %s", err, out)
		}
		data, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(data)
	}
	want := map[string]bool{"struct ibv_sge": true, "enum ibv_mtu": true}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, data, 0o644))
		found := &definitions{named: map[string][]*cType{}}
		noPanic(func() error {
			if err := readDWARF(context.Background(), path, runtime.GOARCH, dir, want, found); err != nil {
				return err
			}
			for _, all := range found.named {
				for _, c := range all {
					c.record(&walk{})
					c.enum()
				}
			}
			return nil
		})
	})
}
