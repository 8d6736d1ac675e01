// SPDX-License-Identifier: BSD-2-Clause

// Command goverbs-facts carries out those subcommands of goverbs that need the models of the headers: goverbs starts it
// by itself. Its options are those of goverbs.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"

	"github.com/alecthomas/kong"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/facts"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/layout"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/conformance/abi/check"
	"github.com/goverbs/goverbs/gen/diff"
	"github.com/goverbs/goverbs/gen/grids"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/gen/rules"
)

// Exit codes, those of goverbs.
const (
	exitFailed = 1
	exitUsage  = 2
	exitDiffer = 3 // what was compared does not fit; the output says why

	exitInterrupted = 128 + 2 // as shells say of SIGINT
)

// errDiffers is the end of a comparison whose output says what differs.
var errDiffers = errors.New("differs")

type commands struct {
	JSON     bool            `help:"Print one JSON document." name:"json"`
	Layout   layoutCommand   `cmd:"" help:"Show how structures of the C libraries lie in memory."`
	Validity validityCommand `cmd:"" help:"Print a table of what is valid: which operation on which queue pair."`
	Tables   tablesCommand   `cmd:"" help:"Print all tables of what is valid, as text or as a page."`
	ABI      abiCommand      `cmd:"" name:"abi" help:"Compare the Go packages with installed headers and libraries."`
	Diff     diffCommand     `cmd:"" help:"Say what changed between two releases of a library."`
}

// output is where a subcommand prints.
type output struct {
	w    io.Writer
	json bool
}

func (o output) print(v page.Text) error { return page.Print(o.w, v, o.json) }

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the command; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	var c commands
	parser, err := kong.New(&c, kong.Name("goverbs-facts"), kong.Writers(stdout, stderr))
	if err != nil {
		panic(err) // of the declarations above
	}
	command, err := parser.Parse(args)
	if err != nil {
		page.Say(stderr, "%v; goverbs --help lists what there is", err)
		return exitUsage
	}
	switch err := command.Run(output{stdout, c.JSON}); {
	case errors.Is(err, errDiffers):
		return exitDiffer
	case errors.Is(err, context.Canceled):
		page.Say(stderr, "interrupted")
		return exitInterrupted
	case err != nil:
		page.Say(stderr, "%v", err)
		return exitFailed
	}
	return 0
}

// layoutCommand shows structures in memory.
type layoutCommand struct{ facts.Layout }

func (c layoutCommand) Run(o output) error {
	all, err := layout.Of(c.Names)
	if err != nil {
		return err
	}
	return o.print(all)
}

// tables prints tables of what is valid.
func tables(o output, format string, names []string) error {
	all, err := recorded.Tables(names...)
	if err != nil {
		return err
	}
	if o.json {
		format = "json"
	}
	return grids.Write(o.w, format, all)
}

// validityCommand prints some tables.
type validityCommand struct{ facts.Validity }

func (c validityCommand) Run(o output) error {
	if len(c.Names) > 0 {
		return tables(o, "text", c.Names)
	}
	all, err := recorded.Tables()
	if err != nil {
		return err
	}
	var list tableList
	for _, g := range all {
		list = append(list, tableName{g.Name, g.Question})
	}
	return o.print(list)
}

// tablesCommand prints all tables.
type tablesCommand struct{ facts.Tables }

func (c tablesCommand) Run(o output) error {
	format := "text"
	if c.HTML {
		format = "html"
	}
	return tables(o, format, nil)
}

// abiCommand is what abicheck does.
type abiCommand struct{ facts.ABI }

func (c abiCommand) Run(o output) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if c.Only == "both" {
		c.Only = ""
	}
	fits, err := check.Run(ctx, check.Options{JSON: o.json, Verbose: c.Verbose, Include: c.Include, CC: c.CC,
		Target: runtime.GOARCH, Packages: c.Packages, Only: c.Only, Dirs: c.Libdirs, Required: c.Require}, o.w)
	if err == nil && !fits {
		err = errDiffers
	}
	return err
}

// diffCommand is what gen diff does.
type diffCommand struct{ facts.Diff }

func (c diffCommand) Run(o output) error {
	_, all, err := recorded.Releases()
	if err != nil {
		return err
	}
	report, err := diff.Recorded(all, c.Old, c.New, rules.ExceptionsText())
	if err != nil {
		return err
	}
	if err := o.print(difference{report}); err != nil {
		return err
	}
	if report.Verdict.ExitStatus() == diff.ExitBreaking {
		return errDiffers
	}
	return nil
}

// difference is a report of package diff.
type difference struct{ *diff.Report }

func (d difference) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s", d.Title(), d.Body()) // goverbs has an exit status of its own
	return err
}

func (d difference) MarshalJSON() ([]byte, error) {
	text, err := d.JSON()
	return bytes.TrimSpace(text), err
}

// tableName is a table and what it answers.
type tableName struct {
	Name     string `json:"name"`
	Question string `json:"question"`
}

type tableList []tableName

func (l tableList) WriteText(w io.Writer) error {
	var rows [][]string
	for _, t := range l {
		rows = append(rows, []string{t.Name, t.Question})
	}
	return page.Table(w, []string{"TABLE", "ANSWERS"}, rows)
}
