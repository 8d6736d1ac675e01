// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReplaced checks that a receiver does not write to another file of the user if every file that it creates in a
// shared directory is replaced with a link to that file.
func TestReplaced(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(from, []byte(strings.Repeat("x", 10000)), 0o600))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		link := filepath.Join(dir, "link")
		for !stop.Load() {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if e.Name() != "link" && e.Name() != "to" {
					_ = os.Symlink(victim, link)
					_ = os.Rename(link, filepath.Join(dir, e.Name()))
				}
			}
		}
	}()
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		at := make(chan string, 1)
		go func() {
			defer cancel()
			_, _ = Receive(ctx, "127.0.0.1:0", to, 1<<30, func(address string) { at <- address },
				func(error) {})
		}()
		select {
		case address := <-at:
			_, _ = Send(ctx, from, address, func(done, of uint64) {})
		case <-ctx.Done():
		}
		<-ctx.Done()
		os.Remove(to)
	}
	stop.Store(true)
	<-done
	have, err := os.ReadFile(victim)
	require.NoError(t, err)
	assert.Equal(t, "untouched", string(have))
}

// TestNoName checks that the directory stays empty until the file is complete, if the file system supports it.
func TestNoName(t *testing.T) {
	dir := t.TempDir()
	d, err := allocate(dir, 5)
	require.NoError(t, err)
	if d.aside != "" {
		t.Skip("the file system does not support unnamed files")
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
	copy(d.mapped.Bytes(), "right")
	name := filepath.Join(dir, "to")
	require.NoError(t, d.link(name))
	assert.ErrorIs(t, d.link(name), os.ErrExist)
	require.NoError(t, d.discard())
	have, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "right", string(have))
}

// TestReplacedName checks that on other file systems, the receiver writes and stores the file that it created, even if
// another file has taken its name.
func TestReplacedName(t *testing.T) {
	unnamed = false
	defer func() { unnamed = true }()
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	d, err := allocate(dir, 5)
	require.NoError(t, err)
	require.NoError(t, os.Remove(d.aside))
	require.NoError(t, os.Symlink(victim, d.aside))
	copy(d.mapped.Bytes(), "right")
	name := filepath.Join(dir, "to")
	assert.Error(t, d.link(name), "a file without a name cannot be linked")
	require.NoError(t, d.discard())
	_, err = os.Lstat(name)
	assert.ErrorIs(t, err, os.ErrNotExist)
	have, err := os.ReadFile(victim)
	require.NoError(t, err)
	assert.Equal(t, "untouched", string(have))

	d, err = allocate(dir, 5)
	require.NoError(t, err)
	require.NoError(t, d.link(name))
	assert.ErrorIs(t, d.link(name), os.ErrExist)
	assert.ErrorIs(t, d.rename(name), os.ErrExist)
	require.NoError(t, d.discard())
	require.NoError(t, os.Remove(name))

	d, err = allocate(dir, 5)
	require.NoError(t, err)
	moved := d.aside + ".moved"
	require.NoError(t, os.Rename(d.aside, moved))
	require.NoError(t, os.Symlink(victim, d.aside))
	assert.ErrorContains(t, d.rename(name), "file was replaced by another program")
	require.NoError(t, os.Rename(moved, d.aside))
	require.NoError(t, d.rename(name))
	require.NoError(t, d.discard())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1, "files left over")
}

// TestSendPipe checks that a pipe is rejected without waiting for a writer.
func TestSendPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(name, 0o600))
	done := make(chan error, 1)
	go func() {
		_, err := Send(t.Context(), name, "127.0.0.1", nil)
		done <- err
	}()
	select {
	case err := <-done:
		assert.ErrorContains(t, err, "is not a regular file")
	case <-time.After(time.Minute):
		t.Error("still waiting for a writer")
	}
}
