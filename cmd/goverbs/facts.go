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

	"github.com/goverbs/goverbs/cmd/goverbs/internal/beside"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/facts"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/internal/rights"
)

// factsCommands are carried out by goverbs-facts.
type factsCommands struct {
	Layout   layoutCommand   `cmd:"" help:"Show how structures of the C libraries lie in memory."`
	Validity validityCommand `cmd:"" help:"Print a table of what is valid: which operation on which queue pair."`
	Tables   tablesCommand   `cmd:"" help:"Print all tables of what is valid, as text or as a page."`
	ABI      abiCommand      `cmd:"" name:"abi" help:"Compare the Go packages with the libraries installed here."`
	Diff     diffCommand     `cmd:"" help:"Say what changed between two releases of a library."`
}

type (
	layoutCommand   struct{ facts.Layout }
	validityCommand struct{ facts.Validity }
	tablesCommand   struct{ facts.Tables }
	abiCommand      struct{ facts.ABI }
	diffCommand     struct{ facts.Diff }
)

func (layoutCommand) Run(o output) error   { return o.byFacts() }
func (validityCommand) Run(o output) error { return o.byFacts() }
func (tablesCommand) Run(o output) error   { return o.byFacts() }
func (abiCommand) Run(o output) error      { return o.byFacts() }
func (diffCommand) Run(o output) error     { return o.byFacts() }

// byFacts has goverbs-facts do what the command line says.
func (o output) byFacts() error {
	path, err := beside.Find(facts.Program)
	if err != nil {
		return err
	}
	return o.start(exec.Command(path, o.args...), path)
}

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
