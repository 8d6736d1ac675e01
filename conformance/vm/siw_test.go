// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWithSIW checks that a module from the cache is loaded last, in guests that get its provider, and that a module
// whose dependencies the image lacks is an error that names them.
func TestWithSIW(t *testing.T) {
	cache := t.TempDir()
	image := madeImage(t)
	image.Version = "6.1.9-1~x"
	elfFile{modinfo: "depends=ib_core,libcrc32c\x00"}.write(t, cache, "siw-6.1.9-1~x.ko")
	_, err := image.WithSIW(t.Context(), cache, nil)
	assert.ErrorIs(t, err, ErrNoSIW)
	assert.ErrorContains(t, err,
		"kernel 6.1: no module siw for the guest: it needs module libcrc32c, which the image lacks")

	module := elfFile{modinfo: "depends=ib_core\x00"}.write(t, cache, "siw-6.1.9-1~x.ko")
	with, err := image.WithSIW(t.Context(), cache, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"ib_core", "rdma_rxe", "siw"}, with.Modules)
	assert.Equal(t, []string{"ib_core", "rdma_rxe"}, image.Modules, "the image stays as it was")
	config := (&Guest{Image: with}).config()
	assert.Equal(t, "siw", config.Driver)
	assert.Equal(t, "rxe", (&Guest{Image: image}).config().Driver)

	elfFile{needed: []string{"libibverbs.so.1"}}.write(t, with.root(), libraryDir+"/libibverbs/libsiw-rdmav34.so")
	text, _, err := with.initramfs(put(t, cache, "init", nil), config, nil, nil)
	require.NoError(t, err)
	all := unpack(t, text)
	want, err := os.ReadFile(module)
	require.NoError(t, err)
	assert.Equal(t, want, all["modules/siw.ko"].data)
	assert.Equal(t, "driver siw\n", string(all["etc/libibverbs.d/siw.driver"].data))
	assert.Contains(t, all, libraryDir+"/libibverbs/libsiw-rdmav34.so")
	assert.NotContains(t, all, libraryDir+"/libibverbs/librxe-rdmav34.so")
}

// TestSIWCannotBeBuilt checks that errors name the missing piece, and that nothing remains in the cache.
func TestSIWCannotBeBuilt(t *testing.T) {
	cache := t.TempDir()
	image := madeImage(t)
	image.Version = "6.1.9-1"
	fails := func(want string) {
		t.Helper()
		_, err := image.WithSIW(t.Context(), cache, nil)
		assert.ErrorIs(t, err, ErrNoSIW)
		assert.ErrorContains(t, err, want)
		left, err := os.ReadDir(cache)
		require.NoError(t, err)
		assert.Empty(t, left)
	}
	for _, tool := range buildTools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this machine has no %s", tool)
		}
	}
	elfFile{modinfo: "depends=\x00"}.write(t, image.dir, "modules/ib_core.ko")
	fails("ib_core.ko: 0 entries vermagic")
	elfFile{modinfo: "vermagic=6.1.0-9-amd64 SMP \x00"}.write(t, image.dir, "modules/ib_core.ko")
	tools := t.TempDir()
	for _, tool := range buildTools {
		file, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(file, filepath.Join(tools, tool)))
	}
	t.Setenv("PATH", tools)
	fails("the Debian archive cannot be reached")
	t.Setenv("PATH", "")
	fails("no command gcc")
}

// TestSIWIsExtracted checks that only the module's directory is extracted from the source.
func TestSIWIsExtracted(t *testing.T) {
	root, source := t.TempDir(), t.TempDir()
	put(t, source, "linux-source-6.1/"+siwTree+"/siw_main.c", []byte("int main;"))
	put(t, source, "linux-source-6.1/init/main.c", nil)
	to := filepath.Join(t.TempDir(), "siw")
	assert.ErrorContains(t, extractSIW(t.Context(), root, to), "0 archives")
	put(t, root, "usr/src/x", nil)
	out, err := exec.Command("tar", "-C", source, "-cJf", filepath.Join(root, "usr/src/linux-source-6.1.tar.xz"),
		"linux-source-6.1").CombinedOutput()
	if err != nil {
		t.Skipf("no tar with xz: %s", out)
	}
	require.NoError(t, extractSIW(t.Context(), root, to))
	text, err := os.ReadFile(filepath.Join(to, "siw_main.c"))
	require.NoError(t, err)
	assert.Equal(t, "int main;", string(text))
	_, err = os.Stat(filepath.Join(to, "init"))
	assert.True(t, errors.Is(err, fs.ErrNotExist))
}

// TestGuestWithSIW boots a guest with a module from the cache; nothing is built or downloaded for it.
func TestGuestWithSIW(t *testing.T) {
	needEverything(t)
	image, program := available(t)
	if _, err := os.Stat(filepath.Join(CacheDir(), "siw-"+image.Version+".ko")); err != nil {
		t.Skipf("%v; build it with go run ./conformance/vm/cmd/vmtest -fetch -driver siw -kernel 6.1", err)
	}
	with, err := image.WithSIW(t.Context(), CacheDir(), t.Logf)
	require.NoError(t, err)
	o, err := (&Guest{Image: with, Log: t.Logf, Programs: []Program{program("0")}}).Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Passed, o.Kind, "%s", o)
}
