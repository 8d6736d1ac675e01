// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"io"
	"runtime"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/layout"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/gen/diff"
	"github.com/goverbs/goverbs/gen/grids"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/internal/abicheck"
)

// factsCommands print what the recorded models and the generated packages have.
type factsCommands struct {
	Layout   layoutCommand   `cmd:"" help:"Show how structures of the C libraries lie in memory."`
	Validity validityCommand `cmd:"" help:"Print a table of what is valid: which operation on which queue pair."`
	Tables   tablesCommand   `cmd:"" help:"Print all tables of what is valid, as text or as a page."`
	ABI      abiCommand      `cmd:"" name:"abi" help:"Compare the Go packages with the libraries installed here."`
	Diff     diffCommand     `cmd:"" help:"Say what changed between two releases of a library."`
}

type layoutCommand struct {
	Names []string `arg:"" optional:"" help:"Structures, in C or in Go: ibv_send_wr, ibv.SendWR. Without one, all."`
}

func (c layoutCommand) Run(o output) error {
	all, err := layout.Of(c.Names)
	if err != nil {
		return err
	}
	return o.print(all)
}

type validityCommand struct {
	Names []string `arg:"" optional:"" help:"Tables: post_send, modify_qp. Without one, their names and questions."`
}

func (c validityCommand) Run(o output) error {
	if len(c.Names) > 0 {
		return o.tables("text", c.Names...)
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

// tableName is a table and its question.
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

type tablesCommand struct {
	HTML bool `name:"html" help:"A page for a browser, which needs nothing else."`
}

func (c tablesCommand) Run(o output) error {
	if c.HTML {
		return o.tables("html")
	}
	return o.tables("text")
}

// tables prints tables in a format of package grids, or as JSON with --json.
func (o output) tables(format string, names ...string) error {
	all, err := recorded.Tables(names...)
	if err != nil {
		return err
	}
	if o.json {
		format = "json"
	}
	return grids.Write(o.w, format, all)
}

// abiCommand has those options of abicheck that are about what is installed.
type abiCommand struct {
	Verbose  bool   `short:"v" help:"List the differences that are fine, too."`
	Include  string `short:"I" help:"Directory with infiniband/verbs.h; without it, where the C compiler finds it."`
	CC       string `name:"cc" help:"C compiler, perhaps with arguments; without it, $$CC, cc, gcc or clang."`
	Libdirs  string `short:"L" help:"Directories of the libraries, with colons between them."`
	Only     string `enum:"headers,libraries,both" default:"both" help:"What to check: headers, libraries or both."`
	Packages string `help:"Only these packages, with commas between them: ibv,rdmacm."`
	Require  string `help:"Names that have to be checked, with commas between them: ibv,libibverbs.so.1."`
}

func (c abiCommand) Run(o output) error {
	if err := mayStart("C compiler"); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	if c.Only == "both" {
		c.Only = ""
	}
	fits, err := abicheck.Run(ctx, abicheck.Options{JSON: o.json, Verbose: c.Verbose, Include: c.Include, CC: c.CC,
		Target: runtime.GOARCH, Packages: c.Packages, Only: c.Only, Dirs: c.Libdirs, Required: c.Require}, o.w)
	if err == nil && !fits {
		return exitStatus(exitDiffer)
	}
	return err
}

type diffCommand struct {
	Old string `arg:"" help:"Recorded release: 56.1, librpma-1.2.0."`
	New string `arg:"" help:"Recorded release: 65.0, librpma-1.3.0."`
}

func (c diffCommand) Run(o output) error {
	_, all, err := recorded.Releases()
	if err != nil {
		return err
	}
	report, err := diff.Recorded(all, c.Old, c.New, nil)
	if err != nil {
		return err
	}
	if err := o.print(difference{report}); err != nil {
		return err
	}
	if report.Verdict.ExitStatus() == diff.ExitBreaking {
		return exitStatus(exitDiffer)
	}
	return nil
}

// difference is a report of package diff.
type difference struct{ *diff.Report }

func (d difference) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s", d.Title(), d.Body()) // not Text, which names gen's exit status
	return err
}

func (d difference) MarshalJSON() ([]byte, error) {
	text, err := d.JSON()
	return bytes.TrimSpace(text), err
}
