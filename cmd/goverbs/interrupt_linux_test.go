// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
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

// process is a running goverbs process.
type process struct {
	*exec.Cmd
	out, problems bytes.Buffer
	ended         chan error
}

// startProcess starts goverbs and, if prefix is not empty, waits for a line on stderr with that prefix.
func startProcess(t *testing.T, prefix, line string) *process {
	executable, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "goverbs")
	require.NoError(t, os.Symlink(executable, program))
	p := &process{Cmd: exec.Command(program, strings.Fields(line)...), ended: make(chan error, 1)}
	p.Stdout, p.Stderr = &p.out, &p.problems
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.WaitDelay = time.Second
	_, err = p.StdinPipe() // stays open
	require.NoError(t, err)
	if prefix == "" {
		require.NoError(t, p.Start())
	} else {
		p.Stderr = nil
		stderr, err := p.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, p.Start())
		first, err := bufio.NewReader(stderr).ReadString('\n')
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(first, prefix), "%s: %s", line, first)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	go func() { p.ended <- p.Wait() }()
	return p
}

// waitExit waits for the process to exit.
func (p *process) waitExit(t *testing.T, timeout time.Duration) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(timeout):
		_ = p.Process.Kill()
		require.Fail(t, "still running", "%v: %s", p.Args, &p.problems)
	}
}

// interrupted is a command to interrupt and its server.
type interrupted struct {
	name, server, prefix, client string
	output                       string // part of the client's output
	code, serverCode             int
	onlyInLongTests              bool
}

// interruptAfter starts both and interrupts the client after a delay.
func (i *interrupted) interruptAfter(t *testing.T, wait time.Duration) *process {
	var server *process
	if i.server != "" {
		server = startProcess(t, i.prefix, i.server)
		if i.prefix == "" {
			time.Sleep(wait)
		}
	}
	client := startProcess(t, "", i.client)
	time.Sleep(wait)
	require.NoError(t, client.Process.Signal(os.Interrupt))
	client.waitExit(t, 10*time.Second)
	if server == nil {
		return client
	}
	if i.serverCode == 0 || len(client.out.String()) == 0 {
		require.NoError(t, server.Process.Signal(os.Interrupt))
	}
	server.waitExit(t, 10*time.Second) // a perf server detects that its peer is gone
	if client.out.Len() > 0 {
		assert.Equal(t, i.serverCode, server.ProcessState.ExitCode(), &server.problems)
	}
	return client
}

// TestInterrupted checks that an interrupted command stops at once, prints its results and exits with 128 plus the
// signal; servers exit with 0.
func TestInterrupted(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "")
	t.Chdir(t.TempDir())
	const at, from = "127.0.77.20", " -d soft@127.0.77.21 127.0.77.20"
	const waits = "goverbs: waiting for "
	for _, test := range []interrupted{
		{"ping", "serve -p 18590 --cm-port 0 -d soft@" + at, "", "--json ping -k rc -n 100000000 -p 18590" + from,
			`"median_us"`, 130, 0, false},
		{"bandwidth", "perf send -p 18591 -D 1000 -d soft@" + at, waits, "--json perf send -p 18591 -D 1000" + from,
			`"mib_per_s"`, 130, exitFailed, true},
		{"both ways", "perf send -b -p 18592 -D 1000 -d soft@" + at, waits,
			"--json perf send -b -p 18592 -D 1000" + from, `"mib_per_s"`, 130, exitFailed, true},
		{"round trips", "perf read --lat -p 18593 -D 1000 -d soft@" + at, waits,
			"--json perf read --lat -p 18593 -D 1000" + from, `"median_us"`, 130, exitFailed, false},
		{"writes and answers", "perf write --lat -p 18594 -D 1000 -d soft@" + at, waits,
			"--json perf write --lat -p 18594 -D 1000" + from, `"median_us"`, 130, exitFailed, true},
		{"by the connection manager", "perf send -R -p 18595 -D 1000 -d soft@" + at, waits,
			"--json perf send -R -p 18595 -D 1000" + from, `"mib_per_s"`, 130, exitFailed, false},
		{"waiting perf", "", "", "perf send -p 18596 -d soft@" + at, "", 130, 0, false},
		{"waiting cp", "", "", "cp --listen " + at + ":18597 -d soft@" + at + " copy", "", 130, 0, false},
		{"echo", "echo --listen " + at + ":18598 -d soft@" + at, "goverbs: echoing on ",
			"echo -d soft@127.0.77.21 " + at + ":18598", "", 130, 0, false},
		{"top", "", "", "top", "", 0, 0, false},
		{"record", "", "", "trace record -- sleep 1000", "", 130, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.onlyInLongTests && os.Getenv("GOVERBS_EVERYTHING") == "" {
				t.Skip("GOVERBS_EVERYTHING is not set; similar cases run")
			}
			for wait := 300 * time.Millisecond; ; wait *= 3 { // a busy machine takes longer until something is measured
				client := test.interruptAfter(t, wait)
				if code := client.ProcessState.ExitCode(); wait < 8*time.Second &&
					(code != test.code || !strings.Contains(client.out.String(), test.output)) {
					continue
				}
				assert.Equal(t, test.code, client.ProcessState.ExitCode(), &client.problems)
				assert.Contains(t, client.out.String(), test.output)
				if strings.HasPrefix(test.client, "--json") {
					assert.True(t, json.Valid(client.out.Bytes()), &client.out)
					assert.Contains(t, client.out.String(), `"interrupted": true`)
				}
				break
			}
		})
	}
	left, err := os.ReadDir(".")
	require.NoError(t, err)
	assert.Empty(t, left, "no incomplete files remain")
}
