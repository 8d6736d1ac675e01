// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
)

// pinnedTree returns a module whose lock pins one header, and an include directory with that header.
func pinnedTree(t *testing.T) (tree, string) {
	t.Helper()
	root, include := t.TempDir(), filepath.Join(t.TempDir(), "include")
	text := []byte("struct ibv_a { int a; };\n")
	require.NoError(t, os.MkdirAll(filepath.Join(include, "infiniband"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(include, "infiniband", "verbs.h"), text, 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "headers", "cache"), 0o755))
	lock := fmt.Sprintf("release rdma-core 9.0 primary\nsuites none\npackage libibverbs-dev 9.0-1\nheader %x "+
		"infiniband/verbs.h\n", sha256.Sum256(text))
	require.NoError(t, os.WriteFile(filepath.Join(root, "headers", "headers.lock"), []byte(lock), 0o644))
	return tree{root: root}, include
}

// TestHeadersFrom checks that a directory given with --from is read even if the cache is complete.
func TestHeadersFrom(t *testing.T) {
	tr, include := pinnedTree(t)
	require.NoError(t, (&headersCmd{From: include}).Run(tr))
	cached := filepath.Join(tr.cache(), "9.0", "include", "infiniband", "verbs.h")
	require.FileExists(t, cached)

	assert.Error(t, (&headersCmd{From: filepath.Join(include, "empty")}).Run(tr))
	header := filepath.Join(include, "infiniband", "verbs.h")
	require.NoError(t, os.WriteFile(header, []byte("struct ibv_a { long a; };\n"), 0o644))
	for _, available := range []bool{false, true} {
		err := (&headersCmd{From: include, Available: available}).Run(tr)
		mismatch := (*fetch.MismatchError)(nil)
		require.ErrorAs(t, err, &mismatch)
		assert.Contains(t, err.Error(), "infiniband/verbs.h")
	}
	require.NoError(t, (&headersCmd{}).Run(tr), "the cache is unchanged")
	err := (&headersCmd{Release: []string{"8.0"}}).Run(tr)
	assert.ErrorContains(t, err, "8.0")
}

// TestTamperedCache checks that an error names a changed file with both checksums.
func TestTamperedCache(t *testing.T) {
	tr, include := pinnedTree(t)
	require.NoError(t, (&headersCmd{From: include}).Run(tr))
	pinned, err := os.ReadFile(filepath.Join(include, "infiniband", "verbs.h"))
	require.NoError(t, err)
	changed := append(pinned, ' ')
	require.NoError(t, os.WriteFile(filepath.Join(tr.cache(), "9.0", "include", "infiniband", "verbs.h"), changed,
		0o644))
	t.Setenv("PATH", "") // without apt, the header cannot be downloaded
	for _, available := range []bool{false, true} {
		err := (&headersCmd{Available: available}).Run(tr)
		require.ErrorIs(t, err, fetch.ErrNoApt)
		assert.ErrorContains(t, err,
			fmt.Sprintf("include/infiniband/verbs.h\n\t\twanted %x\n\t\tfound  %x\n", sha256.Sum256(pinned),
				sha256.Sum256(changed)))
		assert.ErrorContains(t, err, "downloading it again failed: rdma-core 9.0: no apt on this machine")
	}
}

// TestHeadersOfARebuild checks that everything else is downloaded if the archive has only a rebuild of a library.
func TestHeadersOfARebuild(t *testing.T) {
	tr, include := pinnedTree(t)
	lock, err := os.ReadFile(tr.at("headers/headers.lock"))
	require.NoError(t, err)
	lock = fmt.Appendf(lock, "package libibverbs1 9.0-1\nlibrary %x libibverbs.so.1\n", sha256.Sum256(nil))
	require.NoError(t, os.WriteFile(tr.at("headers/headers.lock"), lock, 0o644))

	archive := t.TempDir() // files for gen/fetch/testdata/bin/apt-get
	target := "Release: sid\nComponent: main\nIdentifier: Packages\nRepo-URI: http://mirror.test/debian/\n" +
		"Sourcesentry: none:1\nOrigin: Debian\nLabel: Debian\n\n"
	for name, text := range map[string]string{
		"targets": target, "targets-fresh": target,
		"suites/none": "libibverbs-dev | 9.0-1 | x none/main amd64 Packages\n" +
			"libibverbs1 | 9.0-1+b1 | x none/main amd64 Packages\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(archive, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(archive, name), []byte(text), 0o644))
	}
	require.NoError(t, os.Symlink(filepath.Dir(include), filepath.Join(archive, "root")))
	bin, err := filepath.Abs("../../fetch/testdata/bin")
	require.NoError(t, err)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("FAKE_APT", archive)
	t.Setenv(fetch.EnvLists, "")
	require.NoError(t, (&headersCmd{Timeout: time.Minute}).Run(tr))
	assert.FileExists(t, filepath.Join(tr.cache(), "9.0/include/infiniband/verbs.h"))
	assert.NoDirExists(t, filepath.Join(tr.cache(), "9.0/lib"))

	rebuilt := filepath.Join(tr.cache(), "9.0/lib/libibverbs.so.1")
	require.NoError(t, os.MkdirAll(filepath.Dir(rebuilt), 0o755))
	require.NoError(t, os.WriteFile(rebuilt, []byte("of another build"), 0o644))
	require.NoError(t, (&headersCmd{Timeout: time.Minute}).Run(tr), "the damaged cache was replaced")
	assert.NoFileExists(t, rebuilt)
}

// TestUnavailable checks that --available skips unavailable releases, but never a wrong checksum.
func TestUnavailable(t *testing.T) {
	assert.True(t, unavailable(&fetch.GoneError{Release: "9.0"}))
	assert.True(t, unavailable(&fetch.ArchiveError{Release: "9.0", Err: errors.New("no network")}))
	assert.True(t, unavailable(fetch.ErrNoApt))
	assert.False(t, unavailable(fmt.Errorf("bring: %w", &fetch.MismatchError{Release: "9.0"})))
	assert.False(t, unavailable(nil))
}

// TestGenerateNeedsEveryModel checks that a pinned release without a model, which would change "since", is an error.
func TestGenerateNeedsEveryModel(t *testing.T) {
	tr, _ := pinnedTree(t)
	require.NoError(t, os.MkdirAll(tr.models(), 0o755))
	err := (&generateCmd{}).Run(tr)
	assert.ErrorContains(t, err, "no model of release 9.0, which headers.lock pins; run make record")
	assert.NoDirExists(t, tr.at("generated"))
}

// TestPinFrom: the headers of a project for another system, which no archive has, are pinned from its source tree, copied
// from it, and otherwise not missed.
func TestPinFrom(t *testing.T) {
	tr, _ := pinnedTree(t)
	src := t.TempDir()
	for _, file := range []string{"libibverbs/verbs.h", "libibverbs/opcode.h", "libibverbs/sa.h", "librdmacm/ib.h",
		"librdmacm/rdma_cma.h", "librdmacm/rdma_verbs.h"} {
		path := filepath.Join(src, "contrib/ofed", file)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte("/* "+file+" */\n"), 0o644))
	}
	pin := pinCmd{Project: "freebsd", Release: "99.1", Version: "99.1"}
	assert.ErrorContains(t, pin.Run(tr), "needs --from DIR")
	pin.From = src
	require.NoError(t, pin.Run(tr))
	lock, err := tr.lock()
	require.NoError(t, err)
	rel := lock.Primary("freebsd")
	require.NotNil(t, rel)
	require.Len(t, rel.Packages[0].Headers, 6)
	assert.Equal(t, fetch.File{Name: "infiniband/ib.h",
		Sum: fmt.Sprintf("%x", sha256.Sum256([]byte("/* librdmacm/ib.h */\n")))}, rel.Packages[0].Headers[3])
	assert.Equal(t, []string{"none"}, rel.Suites)

	require.NoError(t, (&headersCmd{Release: []string{"freebsd-99.1"}}).Run(tr), "not cached, and not an error")
	assert.ErrorIs(t, fetch.Verify(tr.cache(), rel), fetch.ErrNotCached)
	require.NoError(t, (&headersCmd{From: src}).Run(tr))
	require.NoError(t, fetch.Verify(tr.cache(), rel))
	require.NoError(t, os.Remove(filepath.Join(src, "contrib/ofed/librdmacm/ib.h")))
	pin.Release = "99.2"
	assert.ErrorContains(t, pin.Run(tr), "infiniband/ib.h")
	assert.ErrorContains(t, (&pinCmd{Project: "rdma-core", Release: "9.1", Version: "9.1-1"}).Run(tr), "--suite or --from")
}
