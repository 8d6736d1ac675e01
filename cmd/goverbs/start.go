// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/internal/rights"
)

// exitStatus is the exit code of a program that goverbs ran, or of a comparison; goverbs exits with it.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("program exited with code %d", int(e)) }

// checkPrivileges returns an error if goverbs has more privileges than its user, because the program would inherit
// them.
func checkPrivileges(name string) error {
	if rights.More() {
		return fmt.Errorf("start: %q: goverbs has elevated privileges (set-uid or capabilities); run it without them",
			name)
	}
	return nil
}

// start runs a program and returns its exit status: its exit code, or 128 plus the signal that ended it. It forwards
// SIGINT, SIGTERM and SIGHUP; a terminal already sends SIGINT to the program itself.
func (o output) start(program *exec.Cmd, name string) error {
	if err := checkPrivileges(name); err != nil {
		return err
	}
	program.Stdin, program.Stdout, program.Stderr = o.in, o.w, o.problems
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := program.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				if s != os.Interrupt || !term.IsTerminal(int(os.Stdin.Fd())) {
					_ = program.Process.Signal(s) // fails if the program has exited
				}
			case <-done:
				return
			}
		}
	}()
	err := program.Wait()
	exit := (*exec.ExitError)(nil)
	switch {
	case !errors.As(err, &exit):
		return err
	case exit.ExitCode() >= 0:
		return exitStatus(exit.ExitCode())
	}
	if number, signal := terminationSignal(exit.ProcessState); number > 0 {
		if signal != "" {
			page.Log(o.problems, "%s: %s", name, signal)
		}
		return exitStatus(128 + number)
	}
	return err
}
