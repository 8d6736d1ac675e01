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
	"github.com/goverbs/goverbs/internal/verbsabi"
)

// factsCommands print facts from the recorded models and the generated packages.
type factsCommands struct {
	Layout   layoutCommand   `cmd:"" help:"Show the memory layout of C structures."`
	Validity validityCommand `cmd:"" help:"Print which operations and attributes are valid, by queue pair type."`
	Tables   tablesCommand   `cmd:"" help:"Print all validity tables, as text or HTML."`
	ABI      abiCommand      `cmd:"" name:"abi" help:"Compare the Go packages with the installed C libraries."`
	Diff     diffCommand     `cmd:"" help:"Compare two releases of a C library."`
}

type layoutCommand struct {
	Names []string `arg:"" optional:"" help:"C or Go structures, such as ibv_send_wr or ibv.SendWR; default: all."`
}

func (c layoutCommand) Run(o output) error {
	all, err := layout.Of(c.Names)
	if err != nil {
		return err
	}
	return o.print(all)
}

type validityCommand struct {
	Names []string `arg:"" optional:"" help:"Tables, such as post_send or modify_qp; default: list them."`
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
	HTML bool `name:"html" help:"Print a self-contained HTML page."`
}

func (c tablesCommand) Run(o output) error {
	if c.HTML {
		return o.tables("html")
	}
	return o.tables("text")
}

// tables prints tables in a format of package grids; --json overrides it.
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

// abiCommand has the options of verbsabi that concern the installed libraries.
type abiCommand struct {
	Program  string `arg:"" optional:"" help:"Check this finished Go program against the libraries of a host instead."`
	Host     string `placeholder:"ROOT" help:"Host of the program: a directory or an image of docker save; default: /."`
	Verbose  bool   `short:"v" help:"Also list harmless differences."`
	Include  string `short:"I" help:"Directory of infiniband/verbs.h; default: the C compiler's search path."`
	CC       string `name:"cc" help:"C compiler command; default: $$CC, cc, gcc or clang."`
	Libdirs  string `short:"L" help:"Library directories, separated by colons."`
	Only     string `enum:"headers,libraries,layouts,both" default:"both" help:"Part to check: headers, libraries, layouts (of --dwarf, --btf) or both."`
	DWARF    string `name:"dwarf" help:"Compare types in the debug information of these files; or: installed."`
	BTF      string `name:"btf" help:"Compare uapi with a kernel's types: /sys/kernel/btf, or vmlinux and modules."`
	DebugDir string `name:"debug-dir" help:"Directory of debug files; default: /usr/lib/debug."`
	Packages string `help:"Check only these packages, such as ibv,rdmacm."`
	Require  string `help:"Fail unless these were checked, such as ibv,libibverbs.so.1."`
	Write    string `help:"Also write FORMAT=FILE, separated by commas: sarif, junit, github or markdown."`
	Policy   string `type:"existingfile" help:"File with accepted differences; see docs/abi-ci.md."`
	Baseline string `help:"Accept the differences in this file, and list new ones."`
	Record   string `name:"write-baseline" help:"Write the differences to this file."`
}

func (c abiCommand) Run(o output) error {
	if c.DWARF == "" && c.BTF == "" {
		if err := checkPrivileges("C compiler"); err != nil {
			return err
		}
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	if c.Only == "both" {
		c.Only = ""
	}
	format := "text"
	if o.json {
		format = "json"
	}
	fits, err := verbsabi.Run(ctx, verbsabi.Options{Format: format, Verbose: c.Verbose, Include: c.Include, CC: c.CC,
		Target: runtime.GOARCH, Packages: c.Packages, Only: c.Only, Dirs: c.Libdirs, Required: c.Require,
		DWARF: c.DWARF, BTF: c.BTF, DebugDir: c.DebugDir, Write: c.Write, Program: c.Program, Host: c.Host,
		Policy: c.Policy, Baseline: c.Baseline, Record: c.Record}, o.w)
	if err == nil && !fits {
		return exitStatus(exitDiffer)
	}
	return err
}

type diffCommand struct {
	Old string `arg:"" help:"Old release, such as 56.1 or librpma-1.2.0."`
	New string `arg:"" help:"New release, such as 65.0 or librpma-1.3.0."`
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

// difference prints a diff report.
type difference struct{ *diff.Report }

func (d difference) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s", d.Title(), d.Body()) // Text would print the exit status of gen
	return err
}

func (d difference) MarshalJSON() ([]byte, error) {
	text, err := d.JSON()
	return bytes.TrimSpace(text), err
}
