// SPDX-License-Identifier: BSD-2-Clause

//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMeasures(t *testing.T) {
	bare := filepath.Join(t.TempDir(), "bare")
	out, err := exec.Command("go", "build", "-o", bare, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(bare, "-time", "50ms").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Regexp(t, `(?m)^1 MiB message,[1-9][0-9.]*$`, string(out))
	assert.Regexp(t, `(?m)^64 bytes and back,[1-9][0-9.]*$`, string(out))
	out, err = exec.Command(bare, "-address", "192.0.2.1").CombinedOutput()
	assert.Error(t, err)
	assert.Contains(t, string(out), "cannot assign requested address")
}
