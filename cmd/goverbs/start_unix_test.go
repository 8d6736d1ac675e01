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

// TestRecordSays: trace record says where something was recorded, or that nothing was, and ends as its program does.
func TestRecordSays(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("GOVERBS_TRACE", "") // which the command sets
	code, _, problems := goverbs("trace", "record", "--", "sh", "-c", "echo there > goverbs-$$.trace; exit 7")
	assert.Equal(t, 7, code)
	assert.Contains(t, problems, "recorded in goverbs-")
	code, _, problems = goverbs("trace", "record", "-o", "file", "--", "true")
	assert.Zero(t, code)
	assert.Contains(t, problems, "nothing was recorded in file: true uses no verbs")
	require.NoError(t, os.WriteFile("file", nil, 0o600))
	code, _, problems = goverbs("trace", "record", "-o", "file", "--", "true")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, problems, "is there already")
	code, _, problems = goverbs("trace", "record", "--", "sh", "-c", "kill -9 $$")
	assert.Equal(t, 128+9, code)
	assert.Contains(t, problems, "killed")
	code, _, problems = goverbs("trace", "record", "--", "sh", "-c", "kill -PIPE $$")
	assert.Equal(t, 128+13, code)
	assert.NotContains(t, problems, "broken pipe")
}

// TestPassedOn: a signal that is to end goverbs ends the program that it has started.
func TestPassedOn(t *testing.T) {
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

// TestUnwritten: output that could not be written is a failure, also of --help and --version.
func TestUnwritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
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

// TestJSON: with --json each subcommand that succeeds prints one document.
func TestJSON(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	for _, words := range []string{"devices", "gids", "gids soft0", "query soft0", "explain 5", "explain RDMA_READ UC",
		"explain ibv_reg_mr ENOMEM", "man", "completion zsh", "top -1"} {
		code, out, problems := goverbs(append([]string{"--json"}, strings.Fields(words)...)...)
		assert.Zero(t, code, "%s: %s", words, problems)
		assert.True(t, json.Valid([]byte(out)), words)
	}
}
