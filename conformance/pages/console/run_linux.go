// SPDX-License-Identifier: BSD-2-Clause

package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// timeout is the timeout of a command.
const timeout = time.Minute

// Run runs those sessions of a page whose first command satisfies pick, in separate directories. Commands are looked up
// in the directory programs first. It returns the number of sessions. With update, it writes output that does not match
// to the page.
func Run(t *testing.T, file, programs string, update bool, pick func(command string) bool) (ran int) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	all, err := Sessions(string(text))
	require.NoError(t, err, file)
	printed := map[int]string{}
	for _, s := range all {
		if !pick(s.Commands[0].Text) {
			continue
		}
		ran++
		t.Run(fmt.Sprintf("line%d", s.Line), func(t *testing.T) { s.run(t, file, programs, update, printed) })
	}
	if len(printed) > 0 {
		require.NoError(t, os.WriteFile(file, []byte(rewritten(string(text), all, printed)), 0o644))
	}
	return ran
}

// rewritten returns a page with the printed output of commands, by line.
func rewritten(page string, all []Session, printed map[int]string) string {
	lines := strings.SplitAfter(page, "\n")
	for _, s := range all {
		for _, c := range s.Commands {
			if text, ok := printed[c.line]; ok {
				for i := range strings.Count(c.Prints, "\n") {
					lines[c.line+i] = ""
				}
				lines[c.line-1] += text
			}
		}
	}
	return strings.Join(lines, "")
}

func (s *Session) run(t *testing.T, file, programs string, update bool, printed map[int]string) {
	dir, status := t.TempDir(), 0
	for _, c := range s.Commands {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		cmd := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("(exit %d)\n%s", status, c.Text))
		if c.Server {
			cmd.Args[2] = "exec " + c.Text
		}
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+programs+string(filepath.ListSeparator)+os.Getenv("PATH"),
			"GOVERBS_DEVICE=", "HOME="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var out shared
		cmd.Stdout, cmd.Stderr = &out, &out
		where := fmt.Sprintf("%s:%d: %s", filepath.Base(file), c.line, c.Text)
		if c.Server {
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 5 * time.Second
			require.NoError(t, cmd.Start(), where)
			defer func() {
				cancel()
				_ = cmd.Wait() // it was killed or has exited
			}()
			require.Eventually(t, func() bool { return out.text() != "" || listens(cmd.Process.Pid) }, timeout,
				10*time.Millisecond, "%s is not listening: %s", where, &out)
			continue
		}
		err := cmd.Run()
		cancel()
		status = 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else {
			require.NoError(t, err, where)
		}
		if s.Fits(&c, out.text()) {
			continue
		}
		if update {
			printed[c.line] = out.text()
			continue
		}
		assert.Equal(t, c.Prints, out.text(), where)
	}
}

// listens reports whether a process listens for TCP connections.
func listens(pid int) bool {
	sockets, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	owned := map[string]bool{}
	for _, name := range sockets {
		if to, err := os.Readlink(name); err == nil {
			owned[to] = true
		}
	}
	const state, inode, listening = 3, 9, "0A"
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > inode && f[state] == listening && owned["socket:["+f[inode]+"]"] {
				return true
			}
		}
	}
	return false
}

// shared is the output of a process, which may be read while it runs.
type shared struct {
	mu     sync.Mutex // guards the following fields
	output bytes.Buffer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(b)
}

func (s *shared) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

func (s *shared) String() string { return s.text() }
