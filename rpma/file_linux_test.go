// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestFile checks that the file contains the data that a peer has written.
func TestFile(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		name := filepath.Join(t.TempDir(), "memory")
		f, err := OpenFile(name, FileOptions{Size: 10000})
		require.NoError(t, err)
		assert.Len(t, f.Bytes(), 10000)
		m, err := r.b.peer.RegFile(f, everyUsage)
		require.NoError(t, err)
		here, to := r.a.memory(64, everyUsage), remote(t, m)
		copy(here.Bytes(), "kept")
		require.NoError(t, r.a.conn.Write(to, 5000, here, 0, 4, OnError, 0))
		require.NoError(t, r.a.conn.Flush(to, 5000, 4, Visibility, Always, 1))
		r.a.done(1)
		onDisk, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, "kept", string(onDisk[5000:5004]))
		require.NoError(t, f.Sync(4999, 5))
		require.NoError(t, f.Sync(0, 0))
		for _, bad := range [][2]int{{-1, 1}, {0, -1}, {0, 10001}, {10001, 0}, {9999, 2}} {
			assert.ErrorIs(t, f.Sync(bad[0], bad[1]), ErrInvalid)
		}
		assert.ErrorIs(t, f.Close(), rdma.ErrInUse)
		require.NoError(t, m.Close())
		require.NoError(t, f.Close())
		require.NoError(t, f.Close())
		assert.Nil(t, f.Bytes())
		assert.ErrorIs(t, f.Sync(0, 1), rdma.ErrClosed)
		_, err = r.b.peer.RegFile(f, everyUsage)
		assert.ErrorIs(t, err, rdma.ErrClosed)

		f, err = OpenFile(name, FileOptions{Size: 20000})
		require.NoError(t, err)
		assert.Len(t, f.Bytes(), 20000)
		assert.Equal(t, "kept", string(f.Bytes()[5000:5004]))
		require.NoError(t, f.Close())
		f, err = OpenFile(name, FileOptions{Size: 10})
		require.NoError(t, err)
		assert.Len(t, f.Bytes(), 20000, "an existing file is not truncated")
		require.NoError(t, f.Close())
	})
}

// TestMapFile maps an open file without a name and checks that its blocks are allocated.
func TestMapFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "memory")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	require.NoError(t, err)
	require.NoError(t, os.Remove(name))
	f, err := MapFile(file, FileOptions{Size: 1 << 20})
	require.NoError(t, err)
	f.Bytes()[1<<20-1] = 1
	var info unix.Stat_t
	require.NoError(t, unix.Fstat(int(file.Fd()), &info))
	assert.EqualValues(t, 1<<20, info.Size)
	if err := unix.Fallocate(int(file.Fd()), 0, 0, 1); err == nil {
		assert.GreaterOrEqual(t, info.Blocks*512, info.Size)
	}
	require.NoError(t, f.Close())
	assert.ErrorIs(t, file.Close(), os.ErrClosed, "Close of the File closes it")

	file, err = os.Open(t.TempDir())
	require.NoError(t, err)
	for _, o := range []FileOptions{{}, {Size: 1}} {
		_, err = MapFile(file, o)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	assert.NoError(t, file.Close(), "the file stays open if MapFile fails")
	_, err = MapFile(nil, FileOptions{Size: 1})
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestTruncatedFile checks that a peer's access to a truncated part of a file fails without crashing a program.
func TestTruncatedFile(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		name := filepath.Join(t.TempDir(), "memory")
		f, err := OpenFile(name, FileOptions{Size: 1 << 20})
		require.NoError(t, err)
		m, err := r.b.peer.RegFile(f, everyUsage)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(name, 0))
		here, to := r.a.memory(64, everyUsage), remote(t, m)
		require.NoError(t, r.a.conn.Write(to, 5000, here, 0, 4, Always, 1))
		var wcs [1]ibv.WC
		_, err = r.a.conn.CQ().Wait(t.Context(), wcs[:])
		require.NoError(t, err)
		assert.Error(t, r.a.conn.CompletionErr(&wcs[0]))
		require.NoError(t, m.Close())
		require.NoError(t, f.Close())
	})
}

// TestOrdinaryFile checks that ordinary files do not support flushes for persistence.
func TestOrdinaryFile(t *testing.T) {
	r := newPair(t, options{})
	name := filepath.Join(t.TempDir(), "memory")
	f, err := OpenFile(name, FileOptions{Size: 4096})
	require.NoError(t, err)
	if f.Persistent() {
		t.Fatal("the temporary directory is on persistent memory: run with another TMPDIR")
	}
	assert.Equal(t, PeerConfig{}, f.Config())
	assert.Equal(t, FlushVisibility, f.FlushUsage())
	_, err = r.b.peer.RegFile(f, FlushVisibility|FlushPersistent)
	assert.ErrorIs(t, err, ErrNotSupported)
	assert.ErrorContains(t, err, "File.Sync")
	require.NoError(t, f.Close())

	f, err = OpenFile(name, FileOptions{AssumePersistent: true})
	require.NoError(t, err)
	assert.Equal(t, PeerConfig{DirectWriteToPmem: true}, f.Config())
	m, err := r.b.peer.RegFile(f, f.FlushUsage())
	require.NoError(t, err)
	assert.Equal(t, FlushVisibility|FlushPersistent, remote(t, m).FlushTypes())
	require.NoError(t, m.Close())
	require.NoError(t, f.Close())
}

// TestNoFile checks that files that cannot be mapped are rejected.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenFile(filepath.Join(dir, "missing"), FileOptions{})
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenFile(filepath.Join(dir, "negative"), FileOptions{Size: -1})
	assert.Error(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	_, err = OpenFile(filepath.Join(dir, "empty"), FileOptions{})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = OpenFile(dir, FileOptions{Size: 10})
	assert.Error(t, err)
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(target, link))
	_, err = OpenFile(link, FileOptions{Size: 4096})
	assert.ErrorContains(t, err, "symbolic link")
	assert.NoFileExists(t, target)
	r := newPair(t, options{})
	_, err = r.a.peer.RegFile(nil, ReadSrc)
	assert.ErrorIs(t, err, ErrInvalid)
}
