// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/libibverbs"
)

// filesOf returns the loaded files whose names have a prefix.
func filesOf(t *testing.T, name string) (files []string) {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	seen := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		if i := strings.IndexByte(lines.Text(), '/'); i >= 0 &&
			strings.HasPrefix(filepath.Base(lines.Text()[i:]), name) && !seen[lines.Text()[i:]] {
			seen[lines.Text()[i:]] = true
			files = append(files, lines.Text()[i:])
		}
	}
	return files
}

// TestOneLibibverbs checks that only one libibverbs is loaded, the one named by path, regardless of which library is
// opened first. With two, objects of one would be passed to the other.
func TestOneLibibverbs(t *testing.T) {
	if first := os.Getenv("GOVERBS_TEST_FIRST"); first != "" {
		for l := range libraries {
			if l.Name == first {
				require.NoError(t, l.Open())
			}
		}
		require.NoError(t, libibverbs.Library.Open())
		assert.Equal(t, []string{os.Getenv("GOVERBS_LIBIBVERBS")}, filesOf(t, "libibverbs"))
		return
	}
	needLibraries(t)
	installed := filesOf(t, "libibverbs.so")
	require.Len(t, installed, 1)
	text, err := os.ReadFile(installed[0])
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "libibverbs-other.so")
	require.NoError(t, os.WriteFile(other, text, 0o644))
	for l := range libraries {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOneLibibverbs$")
		cmd.Env = append(os.Environ(), "GOVERBS_TEST_FIRST="+l.Name, "GOVERBS_LIBIBVERBS="+other)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s first:\n%s", l.Name, out)
	}
}
