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

// TestRunWithMoreRights: other programs do not get the rights of a goverbs that has more than its user.
func TestRunWithMoreRights(t *testing.T) {
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
		assert.Contains(t, problems, "goverbs has more rights than its user")
	}
}
