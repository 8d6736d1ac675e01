// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/project"
)

// generatedText returns the source of package ibv.
func generatedText(t *testing.T, root string) string {
	t.Helper()
	files, err := sources(filepath.Join(root, "generated/ibv"))
	require.NoError(t, err)
	var b strings.Builder
	for _, text := range files {
		b.Write(text)
	}
	return b.String()
}

// renamed returns a source tree with another release number.
func renamed(t *testing.T, dir, release string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "CMakeLists.txt"),
		[]byte("set(PACKAGE_VERSION \""+release+"\")\n"), 0o644))
	return dir
}

// TestBumpOfPinned checks that a pin is never replaced by other files under its name.
func TestBumpOfPinned(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	other := unpacked(t, root, primary, lastMember, oneMore)
	before := contents(t, root)
	refused := func(args ...string) {
		t.Helper()
		status, _, stderr := gen(root, append([]string{"bump"}, args...)...)
		assert.Equal(t, 1, status, stderr)
		assert.Regexp(t, `infiniband/verbs\.h\n\s+wanted [0-9a-f]{64}\n\s+found  [0-9a-f]{64}\n`, stderr)
		assert.Contains(t, stderr, "is already pinned with these sums; give --release NAME")
		assert.NotContains(t, stderr, "without a comparison")
		assert.Equal(t, before, contents(t, root))
	}
	tree65 := renamed(t, sourceTree(t, other), primary)
	refused(tree65)
	refused(tree65, "--dry-run")
	refused(other, "--release", primary)
	refused(other, "--release", "56.1")

	status, _, stderr := gen(root, "bump", filepath.Join(root, "headers/cache", primary))
	assert.Equal(t, 0, status, stderr)
	assert.Contains(t, stderr, "rdma-core "+primary+" is already pinned with the same sums")
	assert.Equal(t, before, contents(t, root))
	same := renamed(t, sourceTree(t, filepath.Join(root, "headers/cache", primary)), primary)
	status, _, stderr = gen(root, "bump", same, "--version", primary+"-1", "--suite", "trixie")
	assert.Equal(t, 2, status, stderr)
	assert.Contains(t, stderr, "--version and --suite are only for new releases")
	status, _, stderr = gen(root, "bump", same, "--version", "98.0-1", "--suite", "trixie")
	assert.Equal(t, 2, status, stderr)
	assert.Contains(t, stderr, "--version 98.0-1 belongs to release 98.0")
	assert.Equal(t, before, contents(t, root))
}

// TestSymbolsKept checks that both commands keep the recorded symbols if the pinned libraries are unavailable, and
// report it.
func TestSymbolsKept(t *testing.T) {
	slow(t)
	gen := command(t)
	root, primary := copied(t)
	home := filepath.Join(root, "headers/cache", primary)
	require.NoError(t, os.RemoveAll(filepath.Join(home, "lib")))
	before := contents(t, root)
	status, out, stderr := gen(root, "record", "--release", primary)
	assert.Equal(t, 0, status, stderr)
	assert.Contains(t, out, "headers/cache lacks libibverbs.so.1 librdmacm.so.1: keeping the recorded symbols")
	assert.Equal(t, before, contents(t, root))

	from := t.TempDir()
	require.NoError(t, os.CopyFS(from, os.DirFS(home)))
	for _, release := range []string{from, primary} {
		status, out, stderr = gen(root, "bump", release, "--dry-run")
		assert.Equal(t, 0, status, stderr)
		assert.Contains(t, out, "note: libibverbs.so.1 and librdmacm.so.1 cannot be downloaded as pinned in "+
			"headers.lock: keeping the symbols that are recorded for rdma-core "+primary)
		assert.Contains(t, out, "0 breaking, 0 additive, 0 without effect")
	}

	path := filepath.Join(root, "headers/models", primary+".json")
	m, err := generate.ReadModel(path)
	require.NoError(t, err)
	m.Libraries = m.Libraries[:1]
	text, err := m.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
	status, _, stderr = gen(root, "record", "--release", primary)
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "librdmacm.so.1: no such file or directory")
}

// TestResolvePin compares files of the archive with pins.
func TestResolvePin(t *testing.T) {
	release := func(version, suite, sum string) *fetch.Release {
		rel := unpinnedRelease(project.Named("rdma-core"), releaseOfVersion(version), version, []string{suite})
		for _, p := range rel.Packages {
			p.Headers = []fetch.File{{Name: "infiniband/" + p.Name + ".h", Sum: "1"},
				{Name: "infiniband/verbs.h", Sum: sum}}
		}
		return rel
	}
	lock := &fetch.Lock{Releases: []*fetch.Release{release("65.0-1.1", "sid", "a"), release("64.0", noSuite, "a")}}
	pinned := lock.Releases[0]

	fresh := release("66.0-1", "sid", "b")
	got, notes, err := resolvePin(lock, fresh, "66.0-1@sid")
	require.NoError(t, err)
	assert.Same(t, fresh, got)
	assert.Empty(t, notes)
	for _, same := range []*fetch.Release{release("65.0-1.1", "forky", "a"), release("65.0-2", "sid", "a")} {
		got, notes, err = resolvePin(lock, same, "x")
		require.NoError(t, err)
		assert.Same(t, pinned, got, "the pin is unchanged")
		assert.Empty(t, notes)
	}
	_, _, err = resolvePin(lock, release("65.0-1.1", "sid", "b"), "65.0-1.1@sid")
	assert.ErrorContains(t, err,
		"65.0-1.1@sid differs from headers.lock:\n\tinclude/infiniband/verbs.h\n\t\twanted a\n\t\tfound  b\n")
	rebuilt := release("65.0-2", "sid", "b")
	got, notes, err = resolvePin(lock, rebuilt, "x")
	require.NoError(t, err)
	assert.Same(t, rebuilt, got)
	assert.Equal(t, []string{"replacing the pin of 65.0, which named version 65.0-1.1: changed files: " +
		"include/infiniband/verbs.h"}, notes)
	known := release("64.0-1", "sid", "a")
	got, notes, err = resolvePin(lock, known, "x")
	require.NoError(t, err)
	assert.Same(t, known, got, "now an archive has it")
	assert.Equal(t, []string{"replacing the pin of 64.0, which named no archive: all files are the same"},
		notes)
}

// TestStandInsAreVerified checks that a man page copied from another release must match its pin.
func TestStandInsAreVerified(t *testing.T) {
	gen := command(t)
	root, primary := copied(t)
	source := sourceTree(t, unpacked(t, root, primary, lastMember, oneMore))
	page := filepath.Join(root, "headers/cache", primary, "man/ibv_post_send.3")
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(page, append(text, '\n'), 0o644))
	before := contents(t, root)
	for _, flags := range [][]string{{"--dry-run"}, nil} {
		status, _, stderr := gen(root, append([]string{"bump", source}, flags...)...)
		assert.Equal(t, 1, status)
		assert.Contains(t, stderr,
			fmt.Sprintf("man/ibv_post_send.3\n\t\twanted %s\n\t\tfound  %s\n", sum(text), sum(append(text, '\n'))))
		assert.Contains(t, stderr, "run make headers")
		assert.Equal(t, before, contents(t, root))
	}
}

// TestBumpErrorsNameFrom checks that an error names the file in FROM, not its temporary copy.
func TestBumpErrorsNameFrom(t *testing.T) {
	gen := command(t)
	root, primary := copied(t)
	for name, c := range map[string]struct {
		damage func(dir string)
		wants  func(dir, tree string) []string // for a directory, and for a source tree with the same files
	}{
		"invalid C header": {
			func(dir string) {
				edit(t, filepath.Join(dir, "include/infiniband/efadv.h"), "struct efadv_x { nonsense a; };\n")
			},
			func(dir, tree string) []string {
				return []string{filepath.Join(dir, "include/infiniband/efadv.h"),
					filepath.Join(tree, "libibverbs/efadv.h")}
			},
		},
		"invalid page": {
			func(dir string) { edit(t, filepath.Join(dir, "man/ibv_post_send.3"), "nothing") },
			func(dir, tree string) []string { return []string{dir + ": ibv_post_send.3:"} },
		},
		"missing header": {
			func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "include/infiniband/efadv.h"))) },
			func(dir, tree string) []string {
				return []string{dir + " lacks infiniband/efadv.h", tree + " lacks infiniband/efadv.h"}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unpacked(t, root, primary, lastMember, oneMore)
			c.damage(dir)
			tree := sourceTree(t, dir)
			want := c.wants(dir, tree)
			for i, from := range []string{dir, tree}[:len(want)] {
				status, _, stderr := gen(root, "bump", from, "--release", "99.0", "--dry-run")
				assert.Equal(t, 1, status)
				assert.Contains(t, stderr, want[i])
				assert.NotContains(t, stderr, "goverbs-bump-")
				assert.NotContains(t, stderr, "install libibverbs-dev")
			}
		})
	}
}

// TestBumpOlder checks that a bump to a pinned release without a header of generated/ points to gen diff.
func TestBumpOlder(t *testing.T) {
	gen := command(t)
	root, primary := copied(t)
	const older = "56.1"
	lock, err := tree{root: root}.lock()
	require.NoError(t, err)
	rel, err := lock.Release("rdma-core", older)
	require.NoError(t, err)
	real := tree{root: module}
	if err := fetch.Verify(real.cache(), rel); err != nil {
		t.Skipf("rdma-core %s is incomplete in headers/cache (%v); run make headers", older, err)
	}
	require.NoError(t, os.CopyFS(filepath.Join(root, "headers/cache", older),
		os.DirFS(filepath.Join(real.cache(), older))))
	status, _, stderr := gen(root, "bump", older, "--dry-run")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, older+" lacks infiniband/ionic_dv.h")
	assert.Contains(t, stderr, "gen diff "+older+" "+primary)
	assert.NotContains(t, stderr, "give the files")
}

func edit(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// TestBumpNewHeader checks that a header that the previous release did not install stops a bump, for every kind of
// FROM.
func TestBumpNewHeader(t *testing.T) {
	gen := command(t)
	root, primary := copied(t)
	complete := unpacked(t, root, primary, lastMember, oneMore)
	edit(t, filepath.Join(complete, "include/infiniband/bumpdv.h"), "#define BUMPDV 1\n")
	edit(t, filepath.Join(complete, "include/infiniband/private.h"), "#define PRIVATE 1\n")
	source := sourceTree(t, complete)
	edit(t, filepath.Join(source, "libibverbs/CMakeLists.txt"),
		"publish_headers(infiniband\n  verbs.h\n  bumpdv.h\n  )\npublish_internal_headers(infiniband\n  private.h\n  "+
			")\n")
	edit(t, filepath.Join(source, "librdmacm/CMakeLists.txt"),
		"publish_headers(rdma\n  rdma_cma.h\n  )\npublish_headers(infiniband\n  acm.h\n  )\n")
	require.NoError(t, os.Remove(filepath.Join(complete, "include/infiniband/private.h")))
	edit(t, filepath.Join(source, "librdmacm/acm.h"), "#define ACM 1\n")
	bare := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(bare, "include"), os.DirFS(filepath.Join(complete, "include"))))
	for name, from := range map[string]string{"with pages": complete, "without pages": bare, "source tree": source} {
		status, _, stderr := gen(root, "bump", from, "--release", "99.0")
		assert.Equal(t, 1, status, name)
		assert.Contains(t, stderr,
			"rdma-core installs headers that no generated package covers: infiniband/bumpdv.h; add them", name)
		assert.NotContains(t, stderr, "private.h", "is not installed")
		assert.NotContains(t, stderr, "acm.h", "is of another package")
	}

	known := t.TempDir()
	require.NoError(t, os.CopyFS(known, os.DirFS(filepath.Join(root, "headers/cache", primary))))
	edit(t, filepath.Join(known, "include/infiniband/bumpdv.h"), "#define BUMPDV 1\n")
	status, out, stderr := gen(root, "bump", known, "--dry-run")
	assert.Equal(t, 0, status, stderr)
	assert.Contains(t, out, "has headers that the pin of "+primary+" lacks; they were not read: infiniband/bumpdv.h")
}

func TestReleaseOfVersion(t *testing.T) {
	for version, release := range map[string]string{"65.0-1.1": "65.0", "44.0-2+b1": "44.0", "1:33.2-1": "33.2",
		"56.1": "56.1"} {
		assert.Equal(t, release, releaseOfVersion(version))
	}
}
