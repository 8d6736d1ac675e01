// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// ErrNoSource reports that a suite's source cannot be had on this machine. The script has printed why.
var ErrNoSource = errors.New("skipped: its source cannot be had")

// noSource is the exit status of such scripts.
const noSource = 3

// Build runs a script that builds a suite from source. At the time limit, the script is killed with all its children.
func Build(ctx context.Context, script string, limit time.Duration, args ...string) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(within, script, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && errors.Is(within.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s did not finish in %v; if this machine or the archive is slow, raise the limit "+
			"in the line @ build of conformance/suites/cases", script, limit)
	}
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == noSource {
		err = ErrNoSource
	}
	return fmt.Errorf("%s: %w", script, err)
}
