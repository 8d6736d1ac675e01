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

// traceCommand records programs, and reads what was recorded.
type traceCommand struct {
	Record  traceRecordCommand  `cmd:"" help:"Run a goverbs program, and record its verbs, posts and completions."`
	Show    traceShowCommand    `cmd:"" help:"Print what was recorded."`
	Explain traceExplainCommand `cmd:"" help:"Say what went wrong, and the likely cause."`
}

type traceRecordCommand struct {
	Out     string   `short:"o" default:"goverbs-%p.trace" help:"File to write; %p is the number of the process."`
	PCAP    string   `name:"pcap" placeholder:"FILE" help:"Write the packets of devices soft@ADDRESS, too."`
	Program []string `arg:"" passthrough:"" help:"The program and its arguments."`
}

func (c traceRecordCommand) Run(o output) error {
	words := c.Program
	if words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return fmt.Errorf("say which program to run: goverbs trace record -- ./program")
	}
	if _, err := os.Lstat(c.Out); err == nil {
		return fmt.Errorf("%s is there already: remove it, or have %%p in the name, which stands for the process ID",
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
	program, begun := exec.Command(words[0], words[1:]...), time.Now()
	err := o.start(program, words[0])
	if program.ProcessState == nil { // it was never started
		return err
	}
	recorded := c.recorded(begun)
	for _, name := range recorded {
		page.Say(o.problems, "recorded in %s; goverbs trace explain %s says what went wrong", name, name)
	}
	if recorded == nil {
		page.Say(o.problems, "nothing was recorded in %s: %s uses no verbs by goverbs, or could not write there",
			c.Out, words[0])
	}
	return err
}

// recorded are the files that the program has written, and programs that it started.
func (c traceRecordCommand) recorded(begun time.Time) (names []string) {
	plain := strings.NewReplacer("\\", "\\\\", "*", "\\*", "?", "\\?", "[", "\\[").Replace(c.Out)
	all, _ := filepath.Glob(strings.ReplaceAll(plain, "%p", "*"))
	for _, name := range all {
		// file systems may have coarser clocks
		if info, err := os.Stat(name); err == nil && info.ModTime().After(begun.Add(-time.Second)) {
			names = append(names, name)
		}
	}
	return names
}

type traceShowCommand struct {
	File   string `arg:"" type:"existingfile" help:"What was recorded."`
	Format string `short:"f" enum:"text,jsonl,chrome" default:"text" help:"text, jsonl, or chrome for about:tracing."`
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
	return o.print(shown{t})
}

// shown is a trace as one document.
type shown struct{ *trace.Trace }

func (s shown) WriteText(w io.Writer) error { return s.Trace.WriteText(w) }

type traceExplainCommand struct {
	Files []string `arg:"" type:"existingfile" help:"What was recorded: of one program, or of those at both ends."`
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
