// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPerfWaits checks that a perf server prints its address once it waits, but not with --json.
func TestPerfWaits(t *testing.T) {
	executable, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "goverbs")
	require.NoError(t, os.Symlink(executable, program))
	serve := func(words ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, words...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	for _, variant := range []struct {
		flags []string
		want  string
	}{
		{[]string{"-p", "18577"}, "goverbs: waiting for ib_send_bw or goverbs perf on TCP port 18577\n"},
		{[]string{"-p", "18578", "-R"}, "goverbs: waiting for ib_send_bw or goverbs perf on 127.0.77.10:18578\n"},
		{[]string{"-p", "18579", "-R", "-c", "UD"},
			"goverbs: waiting for ib_send_bw or goverbs perf on 127.0.77.10:18579\n"},
	} {
		server := serve(append([]string{"perf", "send", "-d", "soft@127.0.77.10"}, variant.flags...)...)
		problems, err := server.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, server.Start())
		output, err := bufio.NewReader(problems).ReadString('\n')
		assert.NoError(t, err)
		assert.Equal(t, variant.want, output)
		require.NoError(t, server.Process.Kill())
		_ = server.Wait()
	}

	flags := []string{"--json", "perf", "send", "-n", "100", "-s", "8", "-p", "18580"}
	server := serve(append(flags, "-d", "soft@127.0.77.10")...)
	var out, problems bytes.Buffer
	server.Stdout, server.Stderr = &out, &problems
	require.NoError(t, server.Start())
	require.Eventually(t, func() bool {
		return serve(append(flags, "-d", "soft@127.0.77.11", "127.0.77.10")...).Run() == nil
	}, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, server.Wait(), problems.String())
	assert.True(t, json.Valid(out.Bytes()))
	assert.Empty(t, problems.String())
}
