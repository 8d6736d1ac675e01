// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/rights"
)

// TestElevatedPrivileges checks that goverbs with elevated privileges does not run other programs.
func TestElevatedPrivileges(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GOVERBS_LIBRARIES", dir)
	t.Setenv("GOVERBS_DEVICE", "")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "goverbs-run"), []byte("#!/bin/sh\n"), 0o700))
	before := rights.More
	defer func() { rights.More = before }()
	rights.More = func() bool { return true }
	for _, line := range [][]string{{"run", "--", "true"}, {"trace", "record", "--", "true"}, {"abi"}} {
		code, _, problems := goverbs(line...)
		assert.Equal(t, exitFailed, code)
		assert.Contains(t, problems, "goverbs has elevated privileges")
	}
}
