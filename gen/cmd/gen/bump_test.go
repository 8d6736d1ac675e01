// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/emit"
	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/model"
)

const module = "../../.."

// slow skips a test unless make test-all runs it. Each form of bump's input reads releases several times.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("slow; make test-all runs it")
	}
}

// command builds the generator in the test's temporary directory and returns a function that runs it on a tree.
func command(t *testing.T) func(root string, args ...string) (status int, out, stderr string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gen")
	built, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", built)
	t.Setenv("TMPDIR", t.TempDir())
	return func(root string, args ...string) (int, string, string) {
		var out, stderr strings.Builder
		cmd := exec.Command(binary, append([]string{"--root", root}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &stderr
		if err := cmd.Run(); err != nil {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
		}
		return cmd.ProcessState.ExitCode(), out.String(), stderr.String()
	}
}

// copied returns a writable tree with the real lock, models and rows, and the headers of the primary release.
func copied(t *testing.T) (root, primary string) {
	t.Helper()
	root = t.TempDir()
	real := tree{root: module}
	lock, err := real.lock()
	require.NoError(t, err)
	rel := lock.Primary("rdma-core")
	if err := fetch.Verify(real.cache(), rel); err != nil {
		t.Skipf("rdma-core %s is incomplete in headers/cache (%v); run make headers",
			rel.Name, err)
	}
	for _, file := range []string{"headers/headers.lock", "gen/rules/exceptions.txt"} {
		text, err := os.ReadFile(real.at(file))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), text, 0o644))
	}
	for _, dir := range []string{"headers/models", "headers/measured", "headers/ioctls", "headers/cache/" + rel.Name, "generated"} {
		require.NoError(t, os.CopyFS(filepath.Join(root, dir), os.DirFS(real.at(dir))))
	}
	return root, rel.Name
}

// unpacked returns the unpacked packages of a fictitious release: the primary's files with an edited verbs.h.
func unpacked(t *testing.T, root, primary, was, is string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(root, "headers/cache", primary))))
	path := filepath.Join(dir, "include/infiniband/verbs.h")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), was), "the line that the test edits")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), was, is, 1)), 0o644))
	return dir
}

const (
	lastMember = "phys_port_cnt_ex;\n"
	oneMore    = lastMember + "\tuint64_t bump_test;\n"
	macro      = lastMember + "#define IBV_BUMP_TEST(x) (x)\n"
)

// contents returns every file of a tree, to check that nothing was written.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	}))
	return all
}

// removeSubjects removes from a model the declarations that exception rows name, as if the rows were written for a
// newer release.
func removeSubjects(t *testing.T, path string) {
	t.Helper()
	m, err := generate.ReadModel(path)
	require.NoError(t, err)
	m.Unread = nil
	text, err := m.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
	_, err = tree{root: filepath.Join(filepath.Dir(path), "../..")}.result()
	require.ErrorContains(t, err, "stale exception")
}

func TestStatus(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("slow; set GOVERBS_LONG=1, or run make test")
	}
	gen := command(t)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"diff", "65.0", "65.0"}, 0, "none (exit status 0)"},
		{[]string{"diff", "44.0", "56.1"}, 3, "additive (exit status 3)"},
		{[]string{"diff", "56.1", "65.0"}, 4, "breaking (exit status 4)"},
		{[]string{"diff", "--json", "56.1", "65.0"}, 4, `"verdict": "breaking"`},
		{[]string{"diff", "1.2.0", "1.3.0"}, 0, "librpma 1.2.0 → 1.3.0: none (exit status 0)"},
		{[]string{"diff", "librpma-1.2.0", "librpma-1.3.0"}, 0, "none (exit status 0)"},
		{[]string{"diff", "1.3.0", "65.0"}, 1, "releases of different projects"},
		{[]string{"diff", "65.0", "freebsd-12.2"}, 4, "rdma-core 65.0 → freebsd 12.2: breaking (exit status 4)"},
		{[]string{"diff", "1.3.0", "freebsd-12.2"}, 1, "releases of different projects"},
		{[]string{"bump", "1.2.0", "--dry-run"}, 2, "give --project librpma"},
		{[]string{"bump", "1.2.0", "--dry-run", "--project", "libnone"}, 2, "use one of rdma-core, librpma"},
		{[]string{"diff", "56.1", "nothing"}, 1, "release nothing is not recorded"},
		{[]string{"diff", "56.1"}, 2, "Usage: gen diff"},
		{[]string{"bump"}, 2, "FROM is missing; give one of"},
		{[]string{"bump", "", "--dry-run"}, 2, "66.0-1@sid"}, // as called by make bump without FROM
		{[]string{"bump", "a", "b"}, 2, "Usage: gen bump"},
		{[]string{"bump", "--help"}, 0, "4 breaking changes"},
		{[]string{"bump", "nothing", "--dry-run"}, 1, "is neither a directory nor VERSION@SUITE"},
		{[]string{"bump", "@"}, 2, "FROM=@: want VERSION@SUITE"},
		{[]string{"bump", "@sid"}, 2, "no version"},
		{[]string{"bump", "65.0-1@"}, 2, `"" is not the name of a suite`},
		{[]string{"bump", "65.0-1@-o"}, 2, `"-o" is not the name of a suite`},
		{[]string{"bump", "65.0~rc1-1@sid"}, 2, `"65.0~rc1" is not the number of a release`},
		{[]string{"bump", "66.0-1@sid", "--release", "66.0"}, 2, "need a directory as FROM"},
		{[]string{"bump", "56.1", "--version", "56.1-1", "--suite", "sid"}, 2, "need a directory as FROM"},
		{[]string{"bump", ".", "--release", "../evil"}, 2, `--release: "../evil" is not the number of a release`},
		{[]string{"bump", ".", "--release", "a b"}, 2, `--release: "a b"`},
		{[]string{"bump", ".", "--release", "*"}, 2, `--release: "*"`},
		{[]string{"bump", ".", "--release", "v66.0"}, 2, `--release: "v66.0"`},
		{[]string{"bump", ".", "--release", "66.0", "--version", "67.0-1", "--suite", "sid"}, 2,
			"--version 67.0-1 belongs to release 67.0, not to --release 66.0"},
		{[]string{"bump", ".", "--version", "66.0-1"}, 2, "--version and --suite must be given together"},
		{[]string{"bump", ".", "--suite", "sid"}, 2, "--version and --suite must be given together"},
		{[]string{"bump", ".", "--version", "66.0-1", "--suite", "Sid"}, 2, `"Sid" is not the name of a suite`},
		{[]string{"pin", "--release", "../evil", "--version", "1", "--suite", "sid"}, 2,
			`"../evil" is not the number of a release`},
	} {
		status, out, stderr := gen(module, c.args...)
		assert.Equal(t, c.status, status, "%v\n%s", c.args, stderr)
		assert.Contains(t, out+stderr, c.want)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestBump(t *testing.T) {
	gen := command(t)
	root, primary := copied(t)
	from := unpacked(t, root, primary, lastMember, oneMore)
	removeSubjects(t, filepath.Join(root, "headers/models", primary+".json"))
	before := contents(t, root)

	status, out, stderr := gen(root, "bump", from, "--dry-run")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "does not name its release; give --release")
	named := []string{"bump", from, "--release", "99.0"}

	status, out, stderr = gen(root, append(named, "--dry-run")...)
	assert.Equal(t, 3, status, stderr)
	assert.Contains(t, out, "rdma-core "+primary+" → 99.0: additive")
	assert.Contains(t, out, "ibv_device_attr_ex.bump_test")
	assert.Contains(t, out, "DeviceAttrEx.BumpTest")

	assert.Contains(t, out, "no archive is known to have packages of 99.0")
	assert.NotContains(t, stderr, "agree with headers.lock")
	assert.Contains(t, stderr, "headers.lock has no sums of them")
	assert.Equal(t, before, contents(t, root))

	named = append(named, "--version", "99.0-1", "--suite", "sid")
	status, _, stderr = gen(root, named...)
	assert.Equal(t, 3, status, stderr)
	lock, err := tree{root: root}.lock()
	require.NoError(t, err)
	assert.Equal(t, "99.0", lock.Primary("rdma-core").Name)
	assert.Equal(t, "99.0-1", lock.Primary("rdma-core").Packages[0].Version)
	again, err := tree{root: root}.result()
	require.NoError(t, err)
	differs, err := generate.Differs(filepath.Join(root, "generated"), again.Files)
	require.NoError(t, err)
	assert.Empty(t, differs)
	require.NoError(t, fetch.Verify(filepath.Join(root, "headers/cache"), lock.Primary("rdma-core")))

	status, out, _ = gen(root, "bump", "99.0")
	assert.Equal(t, 0, status, "a second bump changes nothing")
	assert.Contains(t, out, "0 breaking, 0 additive")

	status, out, stderr = gen(root, "bump", primary)
	assert.Equal(t, 4, status, "going back is breaking: %s", stderr)
	assert.Contains(t, out, "DeviceAttrEx.BumpTest  removed")
	lock, err = tree{root: root}.lock()
	require.NoError(t, err)
	assert.Equal(t, primary, lock.Primary("rdma-core").Name)
}

// TestBumpOfTables bumps to a header with an opcode that no table row covers.
func TestBumpOfTables(t *testing.T) {
	gen := command(t)
	root, primary := copied(t)
	from := unpacked(t, root, primary, "IBV_WR_ATOMIC_WRITE = 15,\n",
		"IBV_WR_ATOMIC_WRITE = 15,\n\tIBV_WR_BUMP_TEST,\n")
	status, out, stderr := gen(root, "bump", from, "--release", "99.0", "--dry-run", "--json")
	assert.Equal(t, 3, status, stderr)
	assert.Regexp(t, `"name": "post_send: IBV_QPT_RC, [A-Z_, ]* × IBV_WR_BUMP_TEST",\s+`+
		`"change": "added",\s+"new": "unspecified",\s+`+
		`"verdict": "additive",\s+"reason": "unanswered: not specified by any source"`, out)
	for _, table := range []string{"post_send", "send_flags", "wr_post", "wr_flags", "wc_send"} {
		assert.Contains(t, out, `"where": "table `+table+`"`)
	}
}

// TestBumpToAnOlderRelease bumps to a header without an event that rows name. An older release is accepted; a newer one
// requires other rows.
func TestBumpToAnOlderRelease(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	from := unpacked(t, root, primary, "\tIBV_EVENT_DEVICE_SPEED_CHANGE,\n", "")
	const row = "unknown asynchronous event IBV_EVENT_DEVICE_SPEED_CHANGE"
	status, out, stderr := gen(root, "bump", from, "--release", "1.0", "--dry-run")
	assert.Equal(t, 4, status, stderr)
	assert.Contains(t, out, "IBV_EVENT_DEVICE_SPEED_CHANGE  removed")
	assert.Contains(t, out, "note: generating from rdma-core 1.0 fails: rows name declarations of later releases")
	assert.Contains(t, stderr, "generating from rdma-core 1.0 would require deleting these rows:\ngen/rules/tables/")
	assert.Contains(t, stderr, row)

	status, out, stderr = gen(root, "bump", from, "--release", "99.0", "--dry-run")
	assert.Equal(t, 1, status, stderr)
	assert.Contains(t, out, "note: generating from rdma-core 99.0 fails: the errors are listed below")
	assert.Contains(t, stderr, row)
}

// TestBumpOfAnotherProject checks that a release of librpma becomes primary only for librpma.
func TestBumpOfAnotherProject(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	real := tree{root: module}
	lock, err := real.lock()
	require.NoError(t, err)
	was := lock.Primary("librpma")
	if err := fetch.Verify(real.cache(), was); err != nil {
		t.Skipf("%s is incomplete in headers/cache (%v); run make headers", was, err)
	}
	from := t.TempDir()
	require.NoError(t, os.CopyFS(from, os.DirFS(filepath.Join(real.cache(), was.File()))))
	path := filepath.Join(from, "include/librpma.h")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	const last = "#define RPMA_ATOMIC_WRITE_ALIGNMENT 8\n"
	require.Equal(t, 1, strings.Count(string(text), last), "the line that the test edits")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), last,
		last+"#define RPMA_BUMP_TEST 9\n", 1)), 0o644))

	status, out, stderr := gen(root, "bump", "--project", "librpma", from, "--release", "9.0", "--version", "9.0-1",
		"--suite", "sid")
	require.Equal(t, 3, status, stderr)
	assert.Contains(t, out, "librpma "+was.Name+" → 9.0: additive (exit status 3)")
	assert.Contains(t, out, "RPMA_BUMP_TEST  added")
	at := tree{root: root}
	lock, err = at.lock()
	require.NoError(t, err)
	assert.Equal(t, "9.0", lock.Primary("librpma").Name)
	assert.Equal(t, primary, lock.Primary("rdma-core").Name)
	assert.FileExists(t, filepath.Join(at.models(), "librpma-9.0.json"))
	generated, err := os.ReadFile(filepath.Join(root, "generated/rpma/const.go"))
	require.NoError(t, err)
	assert.Regexp(t, `BUMP_TEST += 9 +// C: RPMA_BUMP_TEST, since 9.0`, string(generated))
	status, _, stderr = gen(root, "generate", "--check")
	assert.Equal(t, 0, status, stderr)
	status, out, _ = gen(root, "diff", was.Name, "9.0")
	assert.Equal(t, 3, status, out)
}

// TestBumpThatCannotGenerate bumps to a header with a declaration that no rule covers.
func TestBumpThatCannotGenerate(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	from := unpacked(t, root, primary, lastMember, macro)
	before := contents(t, root)
	args := []string{"bump", from, "--release", "99.0", "--version", "99.0-1", "--suite", "sid"}
	status, out, stderr := gen(root, args...)
	assert.Equal(t, 1, status)
	assert.Contains(t, out, "IBV_BUMP_TEST  added")
	assert.Contains(t, stderr, "nothing written, the model is in "+os.Getenv("TMPDIR"))
	assert.Contains(t, stderr, "IBV_BUMP_TEST")
	assert.Equal(t, before, contents(t, root))

	status, out, _ = gen(root, append(args, "--dry-run")...)
	assert.Equal(t, 1, status, "as without --dry-run")
	assert.Contains(t, out, "note: generating from rdma-core 99.0 fails")
	assert.Equal(t, before, contents(t, root))
}

// TestBumpUndone makes the last step of writing fail and checks that the earlier steps are undone.
func TestBumpUndone(t *testing.T) {
	root := t.TempDir()
	at := tree{root: root}
	require.NoError(t, os.MkdirAll(at.models(), 0o755))
	sum := strings.Repeat("0", 64)
	release := func(name string) *fetch.Release {
		return &fetch.Release{Project: "rdma-core", Name: name, Role: fetch.Primary, Suites: []string{"sid"},
			Packages: []*fetch.Package{{Name: "pkg", Version: name,
				Headers: []fetch.File{{Name: "infiniband/verbs.h", Sum: sum}}}}}
	}
	lock := &fetch.Lock{Releases: []*fetch.Release{release("1.0")}}
	require.NoError(t, os.WriteFile(at.at("headers/headers.lock"), lock.Encode(), 0o644))
	before := contents(t, root)
	in := &incoming{model: &model.Release{Name: "2.0", Targets: []string{"amd64"}}, pin: release("2.0")}
	err := write(at, lock, in, &generate.Result{Files: emit.Files{"a": nil, "a/b": nil}})
	assert.Error(t, err)
	assert.False(t, errors.Is(err, fs.ErrNotExist), "%v", err)
	assert.Equal(t, before, contents(t, root))

	require.NoError(t, write(at, lock, in, &generate.Result{Files: emit.Files{"a": nil}}))
	assert.FileExists(t, filepath.Join(at.models(), "2.0.json"))
	next, err := at.lock()
	require.NoError(t, err)
	assert.Equal(t, "2.0", next.Primary("rdma-core").Name)
	assert.Len(t, next.Releases, 2)
}
