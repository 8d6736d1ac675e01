// SPDX-License-Identifier: BSD-2-Clause

//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTraceRecord checks that trace record reports the trace file, or its absence, and exits with the program's code.
func TestTraceRecord(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("GOVERBS_TRACE", "") // the command sets it
	code, _, problems := goverbs("trace", "record", "--", "sh", "-c", "echo there > goverbs-$$.trace; exit 7")
	assert.Equal(t, 7, code)
	assert.Contains(t, problems, "trace written to goverbs-")
	code, _, problems = goverbs("trace", "record", "-o", "file", "--", "true")
	assert.Zero(t, code)
	assert.Contains(t, problems, "no trace written to file: true does not use goverbs")
	require.NoError(t, os.WriteFile("file", nil, 0o600))
	code, _, problems = goverbs("trace", "record", "-o", "file", "--", "true")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, problems, "already exists")
	code, _, problems = goverbs("trace", "record", "--", "sh", "-c", "kill -9 $$")
	assert.Equal(t, 128+9, code)
	assert.Contains(t, problems, "killed")
	code, _, problems = goverbs("trace", "record", "--", "sh", "-c", "kill -PIPE $$")
	assert.Equal(t, 128+13, code)
	assert.NotContains(t, problems, "broken pipe")
}

// TestForwardedSignals checks that SIGTERM and SIGHUP are forwarded to the program.
func TestForwardedSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		ready := filepath.Join(t.TempDir(), "ready")
		c := exec.Command("goverbs", "trace", "record", "--", "sh", "-c", "echo $$ > "+ready+"; exec sleep 100")
		c.Dir = t.TempDir()
		require.NoError(t, c.Start())
		var pid string
		require.Eventually(t, func() bool {
			text, _ := os.ReadFile(ready)
			pid = strings.TrimSpace(string(text))
			return pid != ""
		}, time.Minute, time.Millisecond)
		require.NoError(t, c.Process.Signal(s))
		err := c.Wait()
		assert.Equal(t, 128+int(s), c.ProcessState.ExitCode(), "%v", err)
		assert.NoDirExists(t, "/proc/"+pid)
	}
}

// TestUnwritten checks that a failure to write the output is an error, also with --help and --version.
func TestUnwritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	defer full.Close()
	t.Setenv("GOVERBS_DEVICE", "soft0")
	for _, words := range []string{"--version", "--help", "man", "devices", "gids", "query soft0", "explain 5",
		"--json devices", "completion bash"} {
		var problems strings.Builder
		assert.Equal(t, exitFailed, run(strings.Fields(words), full, &problems), words)
		assert.Contains(t, problems.String(), "no space left", words)
	}
}

// TestJSON checks that each subcommand prints one JSON document with --json.
func TestJSON(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	for _, words := range []string{"devices", "gids", "gids soft0", "query soft0", "explain 5", "explain RDMA_READ UC",
		"explain ibv_reg_mr ENOMEM", "man", "completion zsh", "top -1"} {
		code, out, problems := goverbs(append([]string{"--json"}, strings.Fields(words)...)...)
		assert.Zero(t, code, "%s: %s", words, problems)
		assert.True(t, json.Valid([]byte(out)), words)
	}
}
