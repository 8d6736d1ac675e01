// SPDX-License-Identifier: BSD-2-Clause

package dropin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFind checks the documented places and that relative paths are ignored.
func TestFind(t *testing.T) {
	thisDir, otherDir := t.TempDir(), t.TempDir()
	t.Chdir(thisDir)
	script := func(path ...string) string {
		name := filepath.Join(filepath.Join(path...), runner)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"), 0o700))
		return name
	}
	for _, dir := range []string{".", "bin", "bin/dropin", "lib/goverbs"} {
		script(thisDir, dir)
	}
	for _, path := range []string{"/nowhere", "", ".", "bin", ":bin/dropin"} {
		t.Setenv("PATH", path)
		t.Setenv("GOVERBS_LIBRARIES", "")
		found, err := Find()
		assert.ErrorContains(t, err, "or PATH", "PATH=%q finds %q", path, found)
		assert.ErrorContains(t, err, "GOVERBS_LIBRARIES")
	}
	t.Setenv("GOVERBS_LIBRARIES", "bin/dropin")
	found, err := Find()
	assert.ErrorContains(t, err, `GOVERBS_LIBRARIES: "bin/dropin": not an absolute path`, found)
	in := script(otherDir)
	t.Setenv("GOVERBS_LIBRARIES", otherDir)
	found, err = Find()
	require.NoError(t, err)
	assert.Equal(t, in, found)
	t.Setenv("GOVERBS_LIBRARIES", "")
	t.Setenv("PATH", otherDir)
	found, err = Find()
	require.NoError(t, err)
	assert.Equal(t, in, found)
}
