// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReplacedSocket replaces each new socket by a link to a file and checks that the file's mode stays the same.
func TestReplacedSocket(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, nil, 0o600))
	require.NoError(t, os.Chmod(dir, 0o777))
	link := filepath.Join(dir, "link")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if strings.HasSuffix(e.Name(), suffix) {
					_ = os.Symlink(victim, link)
					_ = os.Rename(link, filepath.Join(dir, e.Name()))
				}
			}
		}
	}()
	for range 500 {
		l, err := listen(dir)
		if err == nil {
			l.Close()
		}
	}
	stop.Store(true)
	<-done
	info, err := os.Stat(victim)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestOpenRefuses: open changes the mode of fresh sockets only.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(socket, 0o600))
	assert.ErrorContains(t, open(socket, 0o666), "replaced by another socket")
	info, err := os.Lstat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, unix.Chmod(socket, fresh))
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	require.NoError(t, os.Symlink(socket, link))
	assert.ErrorIs(t, open(link, 0o666), unix.ENOTSOCK)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.ErrorIs(t, open(file, 0o666), unix.ENOTSOCK)
	assert.ErrorIs(t, open(filepath.Join(dir, "none"), 0o666), unix.ENOENT)
	assert.NoError(t, open(socket, 0o666))
	info, err = os.Lstat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o666, info.Mode())
}

// TestUmask: the directory, not the umask, determines the mode of a socket.
func TestUmask(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o770))
	defer unix.Umask(unix.Umask(0o777))
	l, err := listen(dir)
	require.NoError(t, err)
	defer l.Close()
	info, err := os.Lstat(l.Addr().String())
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o660, info.Mode())
}

// TestNewSocketIsKept: removeStale does not remove the socket of a program that is about to listen.
func TestNewSocketIsKept(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Fchmod(fd, fresh))
	name := filepath.Join(dir, "1-x"+suffix)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	removeStale(dir)
	require.FileExists(t, name)
	require.NoError(t, open(name, 0o600))
	removeStale(dir)
	assert.NoFileExists(t, name)
}
