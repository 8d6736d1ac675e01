// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/manual"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/shell"
	"github.com/goverbs/goverbs/rdma"
)

// shellCommands are for shells and for man.
type shellCommands struct {
	Completion completionCommand `cmd:"" help:"Print what a shell reads to complete this command."`
	Man        manCommand        `cmd:"" help:"Print the page of this command for man."`
	Complete   completeCommand   `cmd:"" hidden:""`
}

// completionCommand prints what a shell reads.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c completionCommand) Run(o output) error {
	script, err := shell.Script(c.Shell)
	if err != nil {
		return err
	}
	return o.print(plain{script})
}

// plain is text that is printed as it is.
type plain struct {
	Text string `json:"text"`
}

func (s plain) WriteText(w io.Writer) error {
	_, err := io.WriteString(w, s.Text)
	return err
}

// completeCommand is what the shells ask.
type completeCommand struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

func (c completeCommand) Run(o output) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	return o.print(candidates(shell.Complete(o.model, words, shell.Sources{"device": devices, "ib-dev": devices})))
}

type candidates []shell.Candidate

func (all candidates) WriteText(w io.Writer) error {
	for _, c := range all {
		if _, err := fmt.Fprintf(w, "%s\t%s\n", c.Word, c.Help); err != nil {
			return err
		}
	}
	return nil
}

// devices are the names that stand for devices, without opening one.
func devices() (all []shell.Candidate) {
	infos, _ := rdma.Devices() // where there are none, there is nothing to offer
	for _, i := range infos {
		all = append(all, shell.Candidate{Word: i.Name, Help: i.Transport.String()})
	}
	return all
}

// manCommand prints the page of man(1).
type manCommand struct{}

func (manCommand) Run(o output) error {
	version, date := built()
	var text strings.Builder
	err := manual.Write(&text, o.model, manual.Page{Version: version, Date: date, Sections: []manual.Section{
		{Title: "EXIT STATUS", Items: []manual.Item{
			{Term: "0", Text: "Done. serve, top, exporter and echo --listen end so when they are interrupted."},
			{Term: "1", Text: "Something failed, or doctor found a problem; the output says what."},
			{Term: "2", Text: "There is no such command, option or argument."},
			{Term: "3", Text: "What abi or diff compared does not fit; the output says why."},
			{Term: "128 + N", Text: "Signal N came first, 130 for Ctrl-C, or it ended the program of run or trace " +
				"record. Otherwise those two end as their program does."},
		}},
		{Title: "ENVIRONMENT", Items: []manual.Item{
			{Term: "GOVERBS_DEVICE", Text: "Name of the device that is taken where none is named: mlx5_0; soft0, a " +
				"device in software; soft@ADDRESS, one that other hosts reach at an address of this machine."},
			{Term: "GOVERBS_CALL", Text: "Forces one way to call libibverbs: blocking or system."},
			{Term: "GOVERBS_STATS", Text: "Directory in which programs that use goverbs publish what they " +
				"count; goverbs top and goverbs exporter ask those of it."},
			{Term: "GOVERBS_TRACE", Text: "File in which a program that uses goverbs records its verbs, posts and " +
				"completions; %p in it stands for the process ID. goverbs trace reads it."},
		}},
	}, SeeAlso: []string{"ibv_devinfo(1)", "ib_send_bw(1)", "rdma(8)", "verbs(7)"}})
	if err != nil {
		return err
	}
	return o.print(plain{text.String()})
}

// version is what --version prints.
func version() string {
	v, date := built()
	if date != "" {
		date = " of " + date
	}
	return fmt.Sprintf("goverbs %s%s, %s, %s/%s", v, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// built is the version of the module, and the day of its commit if that is known.
func built() (version, date string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)", ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" && len(s.Value) >= len("2006-01-02") {
			date = s.Value[:len("2006-01-02")]
		}
	}
	return info.Main.Version, date
}
