// SPDX-License-Identifier: BSD-2-Clause

package bounded

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// odd makes a directory with one file of each kind.
func odd(t *testing.T) string {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("plain.h"), []byte("text"), 0o644))
	require.NoError(t, syscall.Mkfifo(at("pipe.h"), 0o644))
	require.NoError(t, os.Symlink("/dev/zero", at("zero.h")))
	require.NoError(t, os.Symlink("loop.h", at("loop.h")))
	require.NoError(t, os.Mkdir(at("dir.h"), 0o755))
	require.NoError(t, os.Symlink(".", at("again"))) // a link to its own directory
	require.NoError(t, os.WriteFile(at("large.h"), nil, 0o644))
	require.NoError(t, os.Truncate(at("large.h"), MaxFile+1))
	return dir
}

func TestRead(t *testing.T) {
	dir := odd(t)
	for name, want := range map[string]string{"plain.h": "", "pipe.h": "a named pipe, not a regular file",
		"zero.h": "a device, not a regular file", "loop.h": "too many levels of symbolic links",
		"dir.h": "a directory, not a regular file", "large.h": "larger than the limit of 64 MiB",
		"missing.h": "no such file"} {
		for how, read := range map[string]func(string) ([]byte, error){
			"path": func(name string) ([]byte, error) { return Read(filepath.Join(dir, name)) },
			"fs":   func(name string) ([]byte, error) { return fs.ReadFile(Dir(dir), name) },
		} {
			text, err := read(name)
			if want == "" {
				assert.NoError(t, err)
				assert.Equal(t, "text", string(text))
				continue
			}
			reason := want
			if name == "dir.h" && how == "fs" {
				reason = "is a directory"
			}
			assert.ErrorContains(t, err, reason, how)
			assert.ErrorContains(t, err, name, how)
			assert.Equal(t, name == "missing.h", os.IsNotExist(err), name)
		}
	}
}

func TestHeaders(t *testing.T) {
	outer, otherDir := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outer, "plain.h"), []byte("text"), 0o644))
	require.NoError(t, os.Symlink(".", filepath.Join(outer, "again")))
	require.NoError(t, os.Symlink("nothing", filepath.Join(outer, "broken.h")))
	require.NoError(t, os.Symlink(otherDir, filepath.Join(outer, "sub")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(outer, "socket"), 0o644)) // not a header
	assert.NoError(t, Headers(outer))
	require.NoError(t, syscall.Mkfifo(filepath.Join(otherDir, "pipe.h"), 0o644))
	assert.ErrorContains(t, Headers(outer), "pipe.h: a named pipe, not a regular file")
}

func TestAll(t *testing.T) {
	_, err := All(zeros{}, "page.gz")
	assert.EqualError(t, err, "read page.gz: larger than the limit of 64 MiB")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestDirectories(t *testing.T) {
	dir := odd(t)
	names, err := Glob(dir, "*.h")
	require.NoError(t, err)
	assert.Len(t, names, 6)
	var walked []string
	require.NoError(t, Walk(dir, func(path string, _ fs.DirEntry, err error) error {
		walked = append(walked, strings.TrimPrefix(path, dir))
		return err
	}))
	assert.Len(t, walked, 8) // and nothing below the link to itself

	defer func(n int) { maxEntries = n }(maxEntries)
	maxEntries = 5
	want := "readdir " + dir + ": more than the limit of 5 entries"
	_, err = fs.ReadDir(Dir(dir), ".")
	assert.EqualError(t, err, want)
	_, err = Glob(dir, "*.h")
	assert.EqualError(t, err, want)
	assert.EqualError(t, Walk(dir, func(_ string, _ fs.DirEntry, err error) error { return err }), want)
}
