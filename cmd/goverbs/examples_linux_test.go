// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/pages/console"
)

var update = flag.Bool("update", false, "update docs/examples-goverbs.md and README.md")

const examplesPage = "../../docs/examples-goverbs.md"

// TestExamples runs the commands in docs/examples-goverbs.md and README.md and compares the output.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	executable, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(executable, filepath.Join(dir, "goverbs")))
	installed, err := filepath.Glob("/usr/lib/*/libibverbs.so.1")
	require.NoError(t, err)
	supported := func(command string) bool {
		if strings.HasPrefix(command, "goverbs abi") && len(installed) == 0 {
			t.Log("libibverbs.so.1 is not installed; make deps installs it")
			return false
		}
		return !strings.HasPrefix(command, "goverbs run ") // conformance/dropin has the libraries
	}
	assert.Greater(t, console.Run(t, examplesPage, dir, *update, supported), 15)
	assert.NotZero(t, console.Run(t, "../../README.md", dir, *update, supported))
}

// TestEveryCommandHasAnExample checks that the page has an example of each subcommand.
func TestEveryCommandHasAnExample(t *testing.T) {
	text, err := os.ReadFile(examplesPage)
	require.NoError(t, err)
	for _, leaf := range newParser(&commands{}, io.Discard, io.Discard, nil).Model.Leaves(true) {
		pattern := `(?m)^\$ (.*\| |goverbs trace record .* -- )?goverbs (--json )?` + regexp.QuoteMeta(leaf.Name) + `\b`
		if leaf.Parent != nil && leaf.Parent.Type == kong.CommandNode {
			pattern = `(?m)^\$ goverbs ` + regexp.QuoteMeta(leaf.Parent.Name+" "+leaf.Name) + `\b`
		}
		assert.Regexp(t, pattern, string(text), "docs/examples-goverbs.md has no example of %s: write one, and run "+
			"go test ./cmd/goverbs -run TestExamples -update", leaf.Path())
	}
}
