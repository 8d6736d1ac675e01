// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCreateRejects: a capture does not overwrite files that others put in its place.
func TestCreateRejects(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	refused := func(name, why string) {
		t.Helper()
		f, err := Create(at(name))
		if assert.ErrorContains(t, err, why) {
			return
		}
		f.Close()
	}
	victim := at("victim")
	require.NoError(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	require.NoError(t, os.Symlink(victim, at("link")))
	refused("link", "symbolic link")
	require.NoError(t, os.Symlink(at("new"), at("dangling")))
	refused("dangling", "symbolic link")
	assert.NoFileExists(t, at("new"))
	require.NoError(t, os.Link(victim, at("hard")))
	refused("hard", "more than one link")
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	assert.Equal(t, "untouched", string(text))

	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	refused("fifo", "no process reads the FIFO")
	reader, err := os.OpenFile(at("fifo"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer reader.Close()
	f, err := Create(at("fifo"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	if os.Geteuid() != 0 {
		t.Skip("needs root to create files of other users")
	}
	require.NoError(t, os.WriteFile(at("other"), []byte("theirs"), 0o666))
	for _, name := range []string{"other", "fifo"} {
		require.NoError(t, os.Chown(at(name), 12345, -1))
		refused(name, "belongs to user 12345")
	}
	text, err = os.ReadFile(at("other"))
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(text))
}
