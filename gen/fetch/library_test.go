// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	soname    = "libibverbs.so.1"
	installed = "lib/x86_64-linux-gnu/" + soname
	symbols1  = "the symbols of 9.0-1\n"
)

// withLibrary returns the release of the other tests with an additional package that contains a library.
func withLibrary(t *testing.T) *Release {
	rel := pinned(t)
	rel.Packages = append(rel.Packages, &Package{Name: "libibverbs1", Version: "9.0-1"})
	require.NoError(t, Pin(unpacked(t, but(map[string]string{installed: symbols1})), rel))
	return rel
}

func TestLibrary(t *testing.T) {
	rel, cache := withLibrary(t), t.TempDir()
	want := &Package{Name: "libibverbs1", Version: "9.0-1",
		Libraries: []File{{Name: soname, Sum: sum([]byte(symbols1))}}}
	assert.Equal(t, want, rel.Packages[1])

	// the soname is a link to the file with the full version
	root := unpacked(t, but(map[string]string{installed + ".2": symbols1}))
	require.NoError(t, os.Symlink(soname+".2", filepath.Join(root, "usr", installed)))
	missing, err := FromDir(root, rel, cache, t.Logf)
	require.NoError(t, err)
	assert.Empty(t, missing)
	file := filepath.Join(cache, "9.0/lib", soname)
	info, err := os.Lstat(file)
	require.NoError(t, err)
	assert.True(t, info.Mode().IsRegular())
	require.NoError(t, Verify(cache, rel))

	// pinning from a cache gives the same result
	again := &Release{Project: rdmaCore, Name: "9.0", Packages: []*Package{{Name: "libibverbs1", Version: "9.0-1"}}}
	require.NoError(t, Pin(filepath.Join(cache, "9.0"), again))
	assert.Equal(t, want, again.Packages[0])

	write(t, file, []byte("other"))
	var m *MismatchError
	require.ErrorAs(t, Verify(cache, rel), &m)
	assert.Equal(t, []Diff{{"lib/" + soname, sum([]byte(symbols1)), sum([]byte("other"))}}, m.Diffs)

	err = Pin(unpacked(t, packageFiles), again)
	assert.ErrorContains(t, err, "no library libibverbs.so.1 in ")
	assert.ErrorContains(t, err, "lib/x86_64-linux-gnu")
}

// TestFromDirWithoutLibrary checks that a library that is missing or from another build is reported as missing, and
// that everything else is copied.
func TestFromDirWithoutLibrary(t *testing.T) {
	rel := withLibrary(t)
	for name, dir := range map[string]string{
		"none":          unpacked(t, packageFiles),
		"another build": unpacked(t, but(map[string]string{installed: "other"})),
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			missing, err := FromDir(dir, rel, cache, nil)
			require.NoError(t, err)
			assert.Equal(t, []string{soname}, missing)
			assert.Equal(t, cached, below(t, filepath.Join(cache, "9.0")))
			var lacks *IncompleteError
			require.ErrorAs(t, Verify(cache, rel), &lacks)
			assert.Equal(t, &IncompleteError{Release: "rdma-core 9.0", Libraries: []string{soname}}, lacks)
			assert.EqualError(t, lacks, "rdma-core 9.0: the cache has all headers but lacks libibverbs.so.1; "+
				"fetch the release from the archive, or give the files with FROM=<include directory or source tree> "+
				"that has them")
		})
	}
}

// archiveWith creates a fake archive with the library in a package of this version.
func archiveWith(t *testing.T, library, pkg, version string) string {
	dir := fakeApt(t)
	files := but(map[string]string{installed: library})
	require.NoError(t, os.Remove(filepath.Join(dir, "root")))
	require.NoError(t, os.Symlink(unpacked(t, files), filepath.Join(dir, "root")))
	write(t, filepath.Join(dir, "suites/sid"), []byte("libibverbs-dev | 9.0-1 | x sid/main amd64 Packages\n"+
		pkg+" | "+version+" | x sid/main amd64 Packages\n"))
	return dir
}

func TestLibraryFromArchive(t *testing.T) {
	dir, rel, cache := archiveWith(t, symbols1, "libibverbs1", "9.0-1"), withLibrary(t), t.TempDir()
	require.NoError(t, FromArchive(context.Background(), rel, cache, t.Logf))
	require.NoError(t, Verify(cache, rel))
	assert.Contains(t, calls(t, dir), "Architectures: amd64\n", "on every machine")

	archiveWith(t, symbols1, "libibverbs1t64", "9.0-1")
	require.NoError(t, FromArchive(context.Background(), rel, cache, nil), "the package was renamed")
	require.NoError(t, Verify(cache, rel))
}

// TestLibraryOfAnotherBuild checks that the library in the pinned package version must match. In a rebuild it may
// differ and is skipped.
func TestLibraryOfAnotherBuild(t *testing.T) {
	archiveWith(t, "other", "libibverbs1", "9.0-1")
	rel, cache := withLibrary(t), t.TempDir()
	var m *MismatchError
	require.ErrorAs(t, FromArchive(context.Background(), rel, cache, nil), &m)
	assert.Equal(t, []Diff{{soname, sum([]byte(symbols1)), sum([]byte("other"))}}, m.Diffs)
	assert.Empty(t, below(t, cache))

	for pinned, there := range map[string]string{"9.0-1": "9.0-1+b1", "9.0-1+b1": "9.0-1+b2", "9.0-1+b3": "9.0-1"} {
		dir := archiveWith(t, "other", "libibverbs1", there)
		rel.Packages[1].Version = pinned
		var lacks *IncompleteError
		require.ErrorAs(t, FromArchive(context.Background(), rel, cache, nil), &lacks)
		assert.Equal(t, []string{soname}, lacks.Libraries)
		assert.NotContains(t, calls(t, dir), "download libibverbs1=")
		assert.Equal(t, cached, below(t, filepath.Join(cache, "9.0")))
	}

	archiveWith(t, "", "libibverbs1", "9.0-1")
	rel.Packages[1].Version = "9.0-1"
	assert.EqualError(t, FromArchive(context.Background(), rel, cache, nil),
		"rdma-core 9.0: the archive's packages lack pinned man pages or libraries: libibverbs.so.1")
}

// TestUnpackToPin checks that the lock records the exact version of a package with libraries, and its name in the
// archive.
func TestUnpackToPin(t *testing.T) {
	archiveWith(t, symbols1, "libibverbs1", "9.0-1+b2")
	suiteOf := func() *Release {
		return &Release{Project: rdmaCore, Name: "9.0", Suites: []string{"sid"}, Packages: []*Package{
			{Name: "libibverbs-dev", Version: "9.0-1"}, {Name: "libibverbs1t64", Version: "9.0-1"}}}
	}
	rel, dir := suiteOf(), t.TempDir()
	require.NoError(t, Unpack(context.Background(), rel, dir, nil))
	require.NoError(t, Pin(dir, rel))
	assert.Equal(t, "9.0-1", rel.Packages[0].Version)
	assert.Equal(t, &Package{Name: "libibverbs1", Version: "9.0-1+b2",
		Libraries: []File{{Name: soname, Sum: sum([]byte(symbols1))}}}, rel.Packages[1])

	archiveWith(t, symbols1, "libother1", "9.0-1")
	var gone *GoneError
	require.ErrorAs(t, Unpack(context.Background(), suiteOf(), dir, nil), &gone)
	assert.Equal(t, "libibverbs1t64", gone.Package)
}
