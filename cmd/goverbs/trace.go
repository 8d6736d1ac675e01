// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/trace"
)

// traceCommand records verbs calls and reads the recordings.
type traceCommand struct {
	Record  traceRecordCommand  `cmd:"" help:"Run a goverbs program and record its verbs, posts and completions."`
	Show    traceShowCommand    `cmd:"" help:"Print a trace."`
	Explain traceExplainCommand `cmd:"" help:"Explain the errors in a trace and their likely causes."`
}

type traceRecordCommand struct {
	Out     string   `short:"o" default:"goverbs-%p.trace" help:"Trace file; %p is the process ID."`
	PCAP    string   `name:"pcap" placeholder:"FILE" help:"Also capture the packets of soft@ADDRESS devices."`
	Program []string `arg:"" passthrough:"" help:"Program and its arguments."`
}

func (c traceRecordCommand) Run(o output) error {
	words := c.Program
	if words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return fmt.Errorf("no program given; for example: goverbs trace record -- ./program")
	}
	if _, err := os.Lstat(c.Out); err == nil {
		return fmt.Errorf("%s already exists; remove it, or use %%p (the process ID) in the name",
			c.Out)
	}
	if err := os.Setenv("GOVERBS_TRACE", c.Out); err != nil {
		return err
	}
	if c.PCAP != "" {
		if err := os.Setenv("GOVERBS_SOFT_CAPTURE", c.PCAP); err != nil {
			return err
		}
	}
	program, started := exec.Command(words[0], words[1:]...), time.Now()
	err := o.start(program, words[0])
	if program.ProcessState == nil { // it was never started
		return err
	}
	traceFiles := c.traceFiles(started)
	for _, name := range traceFiles {
		page.Log(o.problems, "trace written to %s; see goverbs trace explain %s", name, name)
	}
	if traceFiles == nil {
		page.Log(o.problems, "no trace written to %s: %s does not use goverbs, or could not write the file",
			c.Out, words[0])
	}
	return err
}

// traceFiles returns the trace files that the program and its children have written.
func (c traceRecordCommand) traceFiles(started time.Time) (names []string) {
	plain := strings.NewReplacer("\\", "\\\\", "*", "\\*", "?", "\\?", "[", "\\[").Replace(c.Out)
	all, _ := filepath.Glob(strings.ReplaceAll(plain, "%p", "*"))
	for _, name := range all {
		// Allow for file systems with coarse timestamps.
		if info, err := os.Stat(name); err == nil && info.ModTime().After(started.Add(-time.Second)) {
			names = append(names, name)
		}
	}
	return names
}

type traceShowCommand struct {
	File   string `arg:"" type:"existingfile" help:"Trace file."`
	Format string `short:"f" enum:"text,jsonl,chrome" default:"text" help:"Output format: text, jsonl, or chrome (for about:tracing)."`
}

func (c traceShowCommand) Run(o output) error {
	t, err := trace.Read(c.File)
	switch {
	case err != nil:
		return err
	case c.Format == "chrome":
		return t.WriteChrome(o.w)
	case c.Format == "jsonl":
		return t.WriteLines(o.w)
	}
	return o.print(traceText{t})
}

// traceText prints a trace.
type traceText struct{ *trace.Trace }

func (s traceText) WriteText(w io.Writer) error { return s.Trace.WriteText(w) }

type traceExplainCommand struct {
	Files []string `arg:"" type:"existingfile" help:"Trace files of one program, or of both ends of a connection."`
}

func (c traceExplainCommand) Run(o output) error {
	var all []*trace.Trace
	for _, name := range c.Files {
		t, err := trace.Read(name)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	return o.print(trace.Explain(all...))
}
