// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/pages/console"
)

// asCommand has this test's program be the command, which sessions start.
const asCommand = "GOVERBS_TEST_EXPORTER"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestExamples runs what the page of examples shows of this program, and compares what is printed.
func TestExamples(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "goverbs")))
	t.Setenv(asCommand, "1")
	assert.Equal(t, 1, console.Run(t, "../../../docs/examples-goverbs.md", dir, false, func(command string) bool {
		return strings.HasPrefix(command, "goverbs exporter ")
	}))
}
