// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/generated/ibv"
)

// smallLibrary has symbols of every kind: with one version, with an old and a default version, with old versions only,
// private, and local.
const smallLibrary = `
__asm__(".symver query_old, small_query@SMALL_1.0");
__asm__(".symver query_new, small_query@@SMALL_1.1");
__asm__(".symver dropped, small_dropped@SMALL_1.0");
int query_old(void) { return 0; }
int query_new(void) { return 1; }
int dropped(void) { return 2; }
int small_open(void) { return 3; }
int small_later(void) { return 4; }
int small_inside(void) { return 5; }
int small_table = 6;
int small_unheard_of(void) { return 7; }
int small_for_providers(void) { return 8; }
int small_local(void) { return 9; }
`

const smallVersions = `
SMALL_1.0 { global: small_open; small_query; small_dropped; small_table; small_for_providers; local: *; };
SMALL_1.1 { global: small_query; small_later; small_unheard_of; } SMALL_1.0;
SMALL_PRIVATE_9 { global: small_inside; } SMALL_1.1;
`

// buildLibrary compiles C text to a shared library of that name, with a link as packages install it.
func buildLibrary(t *testing.T, file, text, versions string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "small.c"), []byte(text), 0o644))
	args := []string{"-shared", "-fPIC", "-nostdlib", "-o", filepath.Join(dir, file), filepath.Join(dir, "small.c")}
	if versions != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "small.map"), []byte(versions), 0o644))
		args = append(args, "-Wl,--version-script="+filepath.Join(dir, "small.map"))
	}
	cc := hostCompiler(t)
	out, err := exec.Command(cc[0], append(cc[1:], args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	link := filepath.Join(dir, "libsmall.so.1")
	if file != "libsmall.so.1" {
		require.NoError(t, os.Symlink(file, link))
	}
	return link
}

func functions(names ...string) []ibv.Function {
	var all []ibv.Function
	for _, name := range names {
		all = append(all, ibv.Function{Name: name, Since: "1.0 or earlier"})
	}
	return all
}

func past(release string, names ...string) pastFunction {
	extern := map[string]bool{}
	for _, name := range names {
		extern[name] = true
	}
	return pastFunction{release, extern}
}

func readSmall(t *testing.T, path string, table []ibv.Function, history []pastFunction, stated string) *Library {
	t.Helper()
	rows := map[string]symbolRow{"small_for_providers": {action: undeclared}, "small_nowhere": {action: unbound}}
	l, err := readLibrary(path, rules.Package{Name: "small", Headers: []string{"infiniband/verbs.h"}},
		library{name: "libsmall.so.1", functions: table}, history, rows, stated)
	require.NoError(t, err)
	return l
}

func lines(l *Library) (all []string) {
	for _, d := range l.Problems {
		word := "wrong: "
		if d.Compatible {
			word = "fine: "
		}
		all = append(all, word+d.String())
	}
	return all
}

func TestLibrary(t *testing.T) {
	path := buildLibrary(t, "libsmall.so.1.3.2.0", smallLibrary, smallVersions)
	history := []pastFunction{past("1.0", "small_open", "small_query"),
		past("2.0", "small_open", "small_query", "small_later"),
		past("3.0", "small_open", "small_query", "small_later", "small_newest")}
	fits := append(functions("small_open", "small_query", "small_later", "small_nowhere"),
		ibv.Function{Name: "small_call", Inline: &ibv.Inline{}})

	l := readSmall(t, path, fits, history, "")
	assert.Equal(t, "2.0", l.Release, "from the name of the file")
	assert.Equal(t, []Symbol{{"small_open", "SMALL_1.0"}, {"small_query", "SMALL_1.1"}, {"small_later", "SMALL_1.1"}},
		l.Bound, "the default version, not the old one")
	assert.Equal(t, []Symbol{{"small_table", "SMALL_1.0"}, {"small_unheard_of", "SMALL_1.1"}}, l.New,
		"neither private nor local nor excepted")
	assert.Empty(t, l.Problems)
	assert.Equal(t, Compatible, l.Verdict)
	assert.Equal(t,
		"compatible: libsmall.so.1 of rdma-core 2.0 ("+path+"): 3 of 3 functions, 0 mismatches; 2 symbols not in any table",
		l.String())

	newer := append(fits, functions("small_newest")...)
	newer[len(newer)-1].Since = "3.0"
	l = readSmall(t, path, newer, history, "")
	assert.Equal(t, []string{"fine: symbol small_newest: not in this library, which is older; since 3.0"}, lines(l))
	assert.Equal(t, Compatible, l.Verdict)

	for name, want := range map[string]string{
		"small_gone":    "wrong: symbol small_gone: removed from this library; since 1.0 or earlier",
		"small_dropped": "wrong: symbol small_dropped: only under the old version SMALL_1.0, which programs are not linked with by name; since 1.0 or earlier",
		"small_inside":  "wrong: symbol small_inside: only under the private version SMALL_PRIVATE_9, which may change at any time; since 1.0 or earlier",
		"small_table":   "wrong: symbol small_table: exported, but not a function; since 1.0 or earlier",
		"small_local":   "wrong: symbol small_local: removed from this library; since 1.0 or earlier",
	} {
		history := []pastFunction{past("1.0", name)}
		l := readSmall(t, path, functions(name), history, "")
		assert.Equal(t, []string{want}, lines(l))
		assert.Equal(t, Incompatible, l.Verdict)
		assert.Equal(t, 1, l.Wrong())
	}
}

// TestLibraryWithoutVersions: a library may have no versions, and no release in its file name.
func TestLibraryWithoutVersions(t *testing.T) {
	path := buildLibrary(t, "libsmall.so.1",
		"int small_open(void) { return 0; }\nint small_later(void) { return 0; }\n", "")
	one, two, three := past("1.0", "small_open"), past("2.0", "small_open", "small_later"),
		past("3.0", "small_open", "small_later", "small_newest")
	table := functions("small_open", "small_later", "small_newest")
	l := readSmall(t, path, table, []pastFunction{one, two, three}, "")
	assert.Equal(t, "2.0", l.Release, "from the functions that it has")
	assert.Equal(t, "small_open", l.Bound[0].String())
	assert.Equal(t, Compatible, l.Verdict)
	assert.Equal(t, Identical, readSmall(t, path, functions("small_open", "small_later"), []pastFunction{two},
		"").Verdict)
	l = readSmall(t, path, table, []pastFunction{one, two, three}, "3.0")
	assert.Equal(t, "3.0", l.Release, "as stated")
	assert.Equal(t, Incompatible, l.Verdict)

	again := past("2.5", "small_open", "small_later")
	l = readSmall(t, path, table, []pastFunction{one, two, again, three}, "")
	assert.Empty(t, l.Release, "two releases have these functions")
	assert.Equal(t, Compatible, l.Verdict, "small_newest is newer than anything that it has")
	assert.Contains(t, l.String(), "of rdma-core unknown")
	assert.Equal(t, Incompatible,
		readSmall(t, path, functions("small_gone"), []pastFunction{past("1.0", "small_gone"), two, again}, "").Verdict)
}

// TestLibraryLacks: if a function is missing, the library is older, unless it has a newer function or no older release
// is known.
func TestLibraryLacks(t *testing.T) {
	path := buildLibrary(t, "libsmall.so.1",
		"int small_open(void) { return 0; }\nint small_newest(void) { return 0; }\n", "")
	one, two, three := past("1.0", "small_open"), past("2.0", "small_open", "small_later"),
		past("3.0", "small_open", "small_later", "small_newest")
	const vanished, older = "wrong: symbol small_later: removed from this library; since 1.0 or earlier",
		"fine: symbol small_later: not in this library, which is older; since 1.0 or earlier"
	for name, c := range map[string]struct {
		history []pastFunction
		stated  string
		want    string
	}{
		"it has something newer":                             {[]pastFunction{one, two, three}, "", vanished},
		"it has something newer, despite the stated release": {[]pastFunction{one, two, three}, "1.0", vanished},
		"nothing that it has is newer": {[]pastFunction{past("1.0", "small_open", "small_newest"), two},
			"", older},
		"nothing that it has is newer, as stated": {[]pastFunction{past("1.0", "small_open", "small_newest"), two},
			"1.0", older},
		"stated to be newer": {[]pastFunction{past("1.0", "small_open", "small_newest"), two},
			"2.0", vanished},
		"the oldest known release has it": {[]pastFunction{past("1.0", "small_open", "small_newest",
			"small_later")}, "", vanished},
		"the oldest known, but stated to be older": {[]pastFunction{two}, "1.0", older},
	} {
		l := readSmall(t, path, functions("small_later"), c.history, c.stated)
		assert.Equal(t, []string{c.want}, lines(l), name)
	}
}

func TestFindLibrary(t *testing.T) {
	ctx := context.Background()
	path := buildLibrary(t, "libsmall.so.1", "int small_open(void) { return 0; }\n", "")
	dir := filepath.Dir(path)
	find := func(target string, dirs ...string) (string, error) {
		return FindLibrary(ctx, hostCompiler(t), "libsmall.so.1", target, dirs)
	}
	found, err := find(runtime.GOARCH, t.TempDir(), dir)
	require.NoError(t, err)
	assert.Equal(t, path, found)
	_, err = find(runtime.GOARCH)
	assert.ErrorIs(t, err, ErrNoLibrary)
	t.Setenv("LD_LIBRARY_PATH", ":"+dir)
	found, err = find(runtime.GOARCH)
	require.NoError(t, err)
	assert.Equal(t, path, found)

	other := "s390x"
	if runtime.GOARCH == other {
		other = "arm64"
	}
	_, err = find(other, dir)
	assert.ErrorIs(t, err, ErrNoLibrary, "a library for another target is skipped")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	foreign := filepath.Join(t.TempDir(), "libsmall.so.1")
	binary.NativeEndian.PutUint16(text[18:], uint16(machines[other].machine))
	require.NoError(t, os.WriteFile(foreign, text, 0o644))
	found, err = find(runtime.GOARCH, filepath.Dir(foreign), dir)
	require.NoError(t, err)
	assert.Equal(t, path, found)

	require.NoError(t, os.WriteFile(foreign, []byte("no library"), 0o644))
	_, err = find(runtime.GOARCH, filepath.Dir(foreign))
	assert.ErrorContains(t, err, "with -L")
}

func TestConfiguredDirs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("ld.so.conf", "# where\n/first\ninclude *.conf\nhwcap 0 nosegneg\n  /last # the end\n")
	write("a.conf", "/second\ninclude "+filepath.Join(dir, "a.conf")+"\n")
	dirs := configuredDirs(filepath.Join(dir, "ld.so.conf"), map[string]bool{})
	assert.Equal(t, "/first", dirs[0])
	assert.Equal(t, "/second", dirs[1])
	assert.Equal(t, "/last", dirs[len(dirs)-1])
	assert.Empty(t, configuredDirs(filepath.Join(dir, "no.such"), map[string]bool{}))
}

func TestSymbolRows(t *testing.T) {
	for text, want := range map[string]string{
		"a | unbound":                     "x:1: 2 columns",
		"# why\na | gone | because":       "x:2: want a name, unbound or undeclared",
		"a | unbound |":                   "x:1: want",
		"a | unbound | w\na|undeclared|w": "x:2: duplicate row for a, first at x:1",
	} {
		_, err := symbolRows("x", text)
		assert.ErrorContains(t, err, want)
	}
}

// TestTablesOfFunctions: every row of symbols.txt has an effect, and the Go packages and the primary model have the
// same functions.
func TestTablesOfFunctions(t *testing.T) {
	rows, err := symbolRows("symbols.txt", symbolsText)
	require.NoError(t, err)
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	declared := map[string]bool{}
	for _, p := range rules.Calling() {
		lib, ok := libraries[p.Name]
		require.True(t, ok, p.Name)
		extern := map[string]bool{}
		for _, f := range lib.functions {
			if f.Inline == nil {
				extern[f.Name] = true
			}
		}
		history := pastFunctions(all.Of(p.Project()), p)
		require.Equal(t, primary.Of(p.Project())[0].Name, history[len(history)-1].release)
		assert.Equal(t, history[len(history)-1].extern, extern, p.Name)
		for _, r := range history {
			for name := range r.extern {
				declared[name] = true
			}
		}
	}
	for name, row := range rows {
		assert.Equal(t, row.action == unbound, declared[name], "%s: %s", row.at, name)
	}
}

// TestInstalledLibraries checks the libraries of this machine, which make deps installs.
func TestInstalledLibraries(t *testing.T) {
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	q := Question{Only: Libraries, Target: runtime.GOARCH, Primary: primary, Recorded: all}
	a, err := Ask(context.Background(), q)
	if err != nil {
		require.ErrorContains(t, err, ErrNoLibrary.Error())
		t.Skip(err)
	}
	var b strings.Builder
	require.NoError(t, a.Print(&b, true))
	t.Logf("\n%s", b.String())
	assert.NotEqual(t, Incompatible, a.Verdict, b.String())
	assert.Equal(t, len(rules.Calling()), len(a.Libraries)+len(a.NotInstalled))
	for _, l := range a.Libraries {
		if l.Project == "rdma-core" { // other projects do not have the release in the file name
			assert.NotEmpty(t, l.Release)
		}
		assert.Equal(t, l.Total, len(l.Bound)+len(l.Problems))
		known := false
		for _, r := range all {
			known = known || r.Name == l.Release
		}
		if known {
			assert.Empty(t, l.New, "%s", l)
		}
		if l.Package != "ibv" {
			continue
		}
		versions := map[string]string{}
		for _, s := range l.Bound {
			versions[s.Name] = s.Version
		}
		assert.Equal(t, "IBVERBS_1.1", versions["ibv_open_device"], "it has an IBVERBS_1.0 too")
		assert.Equal(t, "IBVERBS_1.1", versions["ibv_query_port"])
	}
}
