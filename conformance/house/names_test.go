// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamesOfTests checks that tests named in lists and documents exist.
func TestNamesOfTests(t *testing.T) {
	cmd := exec.Command("git", "grep", "-h", "^func Test", "--", "*_test.go")
	cmd.Dir = "../.."
	declarations, err := cmd.Output()
	require.NoError(t, err)
	for _, file := range []string{"conformance/vm/lossy.txt", "conformance/vm/promises/promises.txt",
		"docs/dev/samples.md", "docs/tested.md", "internal/defects/defects.txt"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		require.NoError(t, err)
		names := regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(string(text), -1)
		assert.NotEmpty(t, names, file)
		for _, name := range names {
			assert.True(t, strings.Contains(string(declarations), "func "+name+"("),
				"%s names %s, which does not exist", file, name)
		}
	}
}
