// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCached checks that the error for a missing image names the command that fetches it, and that an image of an older
// recipe is ignored.
func TestCached(t *testing.T) {
	dir := t.TempDir()
	_, err := Cached("6.1", dir)
	assert.ErrorIs(t, err, ErrNoImage)
	assert.ErrorContains(t, err, "vmtest -fetch -kernel 6.1")
	_, err = Cached("5.4", dir)
	assert.EqualError(t, err, `unknown kernel "5.4"; use one of 6.1, 6.12, 7`)
	k, err := find("6.1")
	require.NoError(t, err)
	put(t, dir, "6.1-00000000/image.json", []byte(`{"Kernel": "6.1"}`))
	_, err = Cached("6.1", dir)
	assert.ErrorIs(t, err, ErrNoImage)
	put(t, dir, "6.1-"+k.recipe()+"/image.json", []byte(`{"Kernel": "6.1", "Modules": ["a"]}`))
	image, err := Cached("6.1", dir)
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, image.Modules)
	assert.Equal(t, filepath.Join(dir, "6.1-"+k.recipe(), "vmlinuz"), image.kernelFile())
}

// TestPrepareWithoutApt checks that a failed Prepare leaves no files behind and that its error has a hint.
func TestPrepareWithoutApt(t *testing.T) {
	t.Setenv("PATH", "")
	dir := t.TempDir()
	_, err := Prepare(t.Context(), "6.12", dir, nil)
	assert.ErrorIs(t, err, ErrNoArchive)
	assert.ErrorContains(t, err, "no command apt-get")
	assert.ErrorContains(t, err, "copy conformance/vm/cache")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestTestArgs(t *testing.T) {
	assert.Equal(t, []string{"-test.timeout=54s", "-test.run=X", "-test.v", "-test.run", "Y", "-own", "-test.count=2",
		"word"},
		testArgs([]string{"-run=X", "--v", "-run", "Y", "-own", "-test.count=2", "word"}, 60e9))
	assert.Equal(t, []string{"-test.timeout=5s"}, testArgs([]string{"-timeout=5s"}, 60e9))
}
