// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSave checks that save keeps a pipe or device, and follows a link.
func TestSave(t *testing.T) {
	hello := func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	require.NoError(t, os.WriteFile(file, []byte("old contents"), 0o600))
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, save(link, hello))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(text))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink)

	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	saved := make(chan error, 1)
	go func() { saved <- save(pipe, hello) }()
	text, err = os.ReadFile(pipe)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(text))
	require.NoError(t, <-saved)
	info, err = os.Lstat(pipe)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeNamedPipe)
	assert.Error(t, save(dir, hello))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 3, "files left over")
}

// TestSaveByLink checks that save does not follow a link of another user.
func TestSaveByLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create links of other users")
	}
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(file, []byte("untouched"), 0o600))
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, os.Lchown(link, 12345, -1))
	assert.ErrorContains(t, save(link, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }),
		"a link of another user")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "untouched", string(text))
}

// TestSaveByLinks checks that save does not follow a link of another user behind one of this user, and replaces
// neither.
func TestSaveByLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create links of other users")
	}
	dir := t.TempDir()
	file, others, own := filepath.Join(dir, "file"), filepath.Join(dir, "others"), filepath.Join(dir, "own")
	require.NoError(t, os.WriteFile(file, []byte("untouched"), 0o600))
	require.NoError(t, os.Symlink("file", others))
	require.NoError(t, os.Lchown(others, 12345, -1))
	require.NoError(t, os.Symlink("others", own))
	assert.ErrorContains(t, save(own, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }),
		"a link of another user")
	to, err := os.Readlink(others)
	require.NoError(t, err, "the link was replaced")
	assert.Equal(t, "file", to)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "untouched", string(text))
}

// TestSaveToPipe checks that save does not write to a pipe of another user.
func TestSaveToPipe(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create pipes of other users")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o666))
	require.NoError(t, os.Chown(pipe, 12345, -1))
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	require.NoError(t, err)
	defer reader.Close()
	assert.ErrorContains(t, save(pipe, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }),
		"belongs to another user")
}

// TestSaveRace checks that save never follows a link that another user creates and removes repeatedly.
func TestSaveRace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create links of other users")
	}
	dir := t.TempDir()
	file, name, link := filepath.Join(dir, "file"), filepath.Join(dir, "name"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(file, []byte("untouched"), 0o600))
	var done sync.WaitGroup
	defer done.Wait()
	var end atomic.Bool
	defer end.Store(true)
	done.Go(func() {
		for !end.Load() {
			_ = os.Symlink("file", link)
			_ = os.Lchown(link, 12345, -1)
			_ = os.Rename(link, name)
			_ = os.Remove(name)
		}
	})
	for range 5000 {
		_ = save(name, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err })
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "untouched", string(text))
	}
}

// TestSaveSwappedLink checks that save never follows another user's link that replaces this user's link repeatedly.
func TestSaveSwappedLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create links of other users")
	}
	dir := t.TempDir()
	victim, name := filepath.Join(dir, "victim"), filepath.Join(dir, "name")
	own, others := filepath.Join(dir, "own"), filepath.Join(dir, "others")
	require.NoError(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.NoError(t, os.Symlink("file", name))
	var done sync.WaitGroup
	defer done.Wait()
	var end atomic.Bool
	defer end.Store(true)
	done.Go(func() {
		for !end.Load() {
			_ = os.Symlink("victim", others)
			_ = os.Lchown(others, 12345, -1)
			_ = os.Rename(others, name)
			_ = os.Symlink("file", own)
			_ = os.Rename(own, name)
		}
	})
	for range 5000 {
		_ = save(name, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err })
		text, err := os.ReadFile(victim)
		require.NoError(t, err)
		require.Equal(t, "untouched", string(text))
	}
}
