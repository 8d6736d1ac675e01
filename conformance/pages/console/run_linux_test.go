// SPDX-License-Identifier: BSD-2-Clause

package console

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRun checks that sessions run in order, see the last exit code and kill their servers, and that differing output
// can be written to the page.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	const good = "```console\n$ sh -c 'echo ready; exec sleep 1000' &\n$ echo a; exit 3\na\n$ echo $?\n3\n```\n"
	write(good)
	assert.Equal(t, 1, Run(t, file, "/nowhere", false, func(string) bool { return true }))
	assert.Zero(t, Run(t, file, "/nowhere", false, func(string) bool { return false }))
	write("```console\n$ echo a\nb\nc\n$ echo …\n…\n```\n")
	Run(t, file, "/nowhere", true, func(string) bool { return true })
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "```console\n$ echo a\na\n$ echo …\n…\n```\n", string(text))
}
