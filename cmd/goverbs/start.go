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

// exitStatus is the end of a program that goverbs has run, or of a comparison, whose exit code becomes its own.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("the program ended with exit code %d", int(e)) }

// mayStart returns an error if goverbs has more rights than its user: another program would get them.
func mayStart(name string) error {
	if rights.More() {
		return fmt.Errorf("start: %q: goverbs has more rights than its user (set-uid, capabilities); start it without",
			name)
	}
	return nil
}

// start runs a program in place of this one; its exit code becomes this one's, or as with shells 128 and the number of
// the signal that ended it, and people read its name. Signals that are to end this one are passed on; what the
// terminal sends, the program gets anyway.
func (o output) start(program *exec.Cmd, name string) error {
	if err := mayStart(name); err != nil {
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
					_ = program.Process.Signal(s) // it may have ended
				}
			case <-done:
				return
			}
		}
	}()
	err := program.Wait()
	ended := (*exec.ExitError)(nil)
	switch {
	case !errors.As(err, &ended):
		return err
	case ended.ExitCode() >= 0:
		return exitStatus(ended.ExitCode())
	}
	if number, signal := endedBy(ended.ProcessState); number > 0 {
		if signal != "" {
			page.Say(o.problems, "%s: %s", name, signal)
		}
		return exitStatus(128 + number)
	}
	return err
}
