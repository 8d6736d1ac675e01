// SPDX-License-Identifier: BSD-2-Clause

package dropin

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPack checks that every user can access the installed files regardless of the builder's umask, and that
// goverbs-run finds the libraries next to it.
func TestPack(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("packages are Debian's: ", err)
	}
	dir := built(t)
	out, err := exec.Command("sh", "-c", `umask 077; exec ../../dropin/pack "$1" 1.2.3`, "sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for kind, list := range map[string][]string{".deb": {"dpkg-deb", "-c"}, ".tar.gz": {"tar", "-tvzf"}} {
		packed, err := filepath.Glob(filepath.Join(dir, "goverbs-dropin_1.2.3_*"+kind))
		require.NoError(t, err)
		require.Len(t, packed, 1)
		out, err := exec.Command(list[0], append(list[1:], packed...)...).Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			assert.Regexp(t, "^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|lrwxrwxrwx) root/root ", line, kind)
		}
	}
	at := t.TempDir()
	out, err = exec.Command("sh", "-c", `tar -xzf "$1"/goverbs-dropin_1.2.3_*.tar.gz -C "$2" && `+
		`"$2"/goverbs-dropin/bin/goverbs-run printenv LD_LIBRARY_PATH`, "sh", dir, at).CombinedOutput()
	require.NoError(t, err, "%s", out)
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), ":")
	assert.Equal(t, filepath.Join(at, "goverbs-dropin/lib/goverbs"), first)
}
