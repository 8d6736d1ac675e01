// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRecordedPackets checks that tshark decodes every packet that trace record captures.
func TestRecordedPackets(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed; make deps installs it")
	}
	dir := t.TempDir()
	executable, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(dir, "goverbs")
	require.NoError(t, os.Symlink(executable, program))
	packets := filepath.Join(dir, "packets.pcap")
	code, _, problems := goverbs("trace", "record", "-o", filepath.Join(dir, "trace"), "--pcap", packets, "--",
		program, "echo", "-d", "soft@127.0.77.5", "127.0.77.6")
	assert.Equal(t, exitFailed, code, "no server: %s", problems)
	out, err := exec.Command(tshark, "-r", packets, "-T", "fields", "-e", "frame.protocols", "-e",
		"_ws.malformed").Output()
	require.NoError(t, err)
	require.NotEmpty(t, out)
	for line := range strings.Lines(string(out)) {
		assert.Contains(t, line, "infiniband")
		assert.NotContains(t, line, "malformed")
	}
}
