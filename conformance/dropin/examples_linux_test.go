// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/pages/console"
)

// TestExamples runs the goverbs run examples of the documentation and compares the output.
func TestExamples(t *testing.T) {
	if inGuest() {
		t.Skip("guests do not have the libraries")
	}
	if _, err := exec.LookPath("ibv_devinfo"); err != nil {
		t.Skip("ibv_devinfo is not installed: make deps installs ibverbs-utils")
	}
	dir := built(t)
	script, err := os.ReadFile("../../dropin/goverbs-run")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "goverbs-run"), script, 0o700)) // as make dropin does
	t.Setenv("GOVERBS_LIBRARIES", dir)
	t.Setenv("GOVERBS_SOFT_CAPTURE", filepath.Join(t.TempDir(), "packets")) // only one process may write it
	n := console.Run(t, "../../docs/examples-goverbs.md", filepath.Dir(goverbs(t)), false, func(command string) bool {
		return strings.HasPrefix(command, "goverbs run ")
	})
	assert.Equal(t, 1, n)
}
