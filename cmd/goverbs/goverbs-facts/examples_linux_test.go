// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/pages/console"
)

var update = flag.Bool("update", false, "write into docs/examples-goverbs.md what the commands print")

// asCommand has this test's program be the command, which sessions start.
const asCommand = "GOVERBS_TEST_FACTS"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// own are the subcommands that this program carries out.
var own = regexp.MustCompile(`^goverbs (layout|validity|tables|abi|diff)\b`)

// TestExamples runs what the page of examples shows of this program, and compares what is printed.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "goverbs")))
	t.Setenv(asCommand, "1")
	installed, err := filepath.Glob("/usr/lib/*/libibverbs.so.1")
	require.NoError(t, err)
	n := console.Run(t, "../../../docs/examples-goverbs.md", dir, *update, func(command string) bool {
		if strings.HasPrefix(command, "goverbs abi") && len(installed) == 0 {
			t.Log("no libibverbs.so.1 is here, which the example of abi compares: make deps installs it")
			return false
		}
		return own.MatchString(command)
	})
	assert.GreaterOrEqual(t, n, 5)
}
