// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/pages/console"
)

var update = flag.Bool("update", false, "write into docs/examples-goverbs.md and README.md what the commands print")

const examplesPage = "../../docs/examples-goverbs.md"

// others are the subcommands whose examples other tests run: of goverbs-facts and goverbs-exporter, and
// conformance/dropin, which has the libraries.
var others = regexp.MustCompile(`^goverbs (layout|validity|tables|abi|diff|exporter|run) `)

// TestExamples runs what the page of examples and README show, and compares what is printed.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	own, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(own, filepath.Join(dir, "goverbs")))
	mine := func(command string) bool { return !others.MatchString(command + " ") }
	assert.Greater(t, console.Run(t, examplesPage, dir, *update, mine), 15)
	assert.NotZero(t, console.Run(t, "../../README.md", dir, *update, mine))
}

// TestEveryCommandHasAnExample: the page has a session for each subcommand.
func TestEveryCommandHasAnExample(t *testing.T) {
	text, err := os.ReadFile(examplesPage)
	require.NoError(t, err)
	parser, err := kong.New(&commands{}, variables())
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		pattern := `(?m)^\$ (.*\| |goverbs trace record .* -- )?goverbs (--json )?` + regexp.QuoteMeta(leaf.Name) + `\b`
		if leaf.Parent != nil && leaf.Parent.Type == kong.CommandNode {
			pattern = `(?m)^\$ goverbs ` + regexp.QuoteMeta(leaf.Parent.Name+" "+leaf.Name) + `\b`
		}
		assert.Regexp(t, pattern, string(text), "docs/examples-goverbs.md has no example of %s: write one, and run "+
			"go test ./cmd/goverbs -run TestExamples -update", leaf.Path())
	}
}
