// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"os/exec"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/beside"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/facts"
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
	return o.start(exec.Command(path, o.args...))
}

// start runs a program in place of this one; its exit code becomes this one's.
func (o output) start(program *exec.Cmd) error {
	program.Stdin, program.Stdout, program.Stderr = o.in, o.w, o.problems
	err := program.Run()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && ended.ExitCode() >= 0 {
		return exitStatus(ended.ExitCode())
	}
	return err
}
