// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	mangokong "github.com/alecthomas/mango-kong"
	"github.com/muesli/roff"
	"github.com/posener/complete"
	"github.com/willabides/kongplete"

	"github.com/goverbs/goverbs/rdma"
)

// shellCommands are for shells and for man.
type shellCommands struct {
	Completion completionCommand `cmd:"" help:"Print what a shell reads to complete this command."`
	Man        manCommand        `cmd:"" help:"Print the page of this command for man."`
	Complete   completeCommand   `cmd:"" hidden:""`
}

// completionScripts have shells run goverbs complete with the command line in COMP_LINE, as package complete expects
// it. Where that prints nothing, shells offer files.
var completionScripts = map[string]string{
	"bash": `# goverbs in bash. Once: source <(goverbs completion bash); for good: put the output into
# ~/.local/share/bash-completion/completions/goverbs
complete -o default -C 'goverbs complete' goverbs
`,
	"zsh": `# goverbs in zsh: source <(goverbs completion zsh), for good in ~/.zshrc behind compinit
autoload -U +X bashcompinit && bashcompinit
complete -o default -C 'goverbs complete' goverbs
`,
	"fish": `# goverbs in fish. Once: goverbs completion fish | source; for good: put the output into
# ~/.config/fish/completions/goverbs.fish
function __goverbs_complete
	COMP_LINE=(commandline -cp | string collect) goverbs complete
end
complete -c goverbs -f -a '(__goverbs_complete)'
complete -c goverbs -n 'test -z "$(__goverbs_complete)"' -F
`,
}

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c completionCommand) Run(o output) error { return o.print(plain{completionScripts[c.Shell]}) }

// plain is text that is printed as it is.
type plain struct {
	Text string `json:"text"`
}

func (s plain) WriteText(w io.Writer) error {
	_, err := io.WriteString(w, s.Text)
	return err
}

// completeCommand prints the words that may stand at the end of COMP_LINE. Bash passes words as arguments, too.
type completeCommand struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

func (completeCommand) Run(o output) error {
	devices := complete.PredictFunc(func(complete.Args) (names []string) {
		infos, _ := rdma.Devices() // without any, there is nothing to offer
		for _, i := range infos {
			names = append(names, i.Name)
		}
		return names
	})
	kongplete.Complete(o.parser, kongplete.WithPredictor("device", devices), kongplete.WithExitFunc(func(int) {}))
	return nil
}

type manCommand struct{}

// manText is a page of package roff, which takes texts for formats. mango gives it a description for the heading that
// is longer than a line, and the time of now.
type manText struct{ *roff.Document }

func (m manText) Heading(section uint, title, _ string, now time.Time) {
	_, date := built()
	if day, err := time.Parse(time.DateOnly, date); err == nil {
		now = day
	}
	m.Document.Heading(section, title, "User Commands", now)
}

func (m manText) Text(s string)     { m.Document.Text(strings.ReplaceAll(s, "%", "%%")) }
func (m manText) TextBold(s string) { m.Document.TextBold(strings.ReplaceAll(s, "%", "%%")) }

func (manCommand) Run(o output) error {
	for _, command := range o.parser.Model.Leaves(true) {
		for _, a := range command.Positional { // of which mango has the names alone
			command.Help += fmt.Sprintf(" %s: %s", a.Summary(), a.Help)
		}
		command.Flags = slices.DeleteFunc(command.Flags, func(f *kong.Flag) bool { return f.Hidden })
	}
	page := mangokong.NewManPage(1, o.parser.Model).
		WithSection("Exit status", `* 0: Done. serve, top, exporter and echo --listen end so when they are interrupted.
* 1: Something failed, or doctor found a problem; the output says what.
* 2: There is no such command, option or argument.
* 3: What abi or diff compared does not fit; the output says why.
* 128 + N: Signal N came first, 130 for Ctrl-C, or it ended the program of run or trace record. Otherwise those two end `+
			`as their program does.`).
		WithSection("Environment", `* GOVERBS_DEVICE: Name of the device that is taken where none is named: mlx5_0; `+
			`soft0, a device in software; soft@ADDRESS, one that other hosts reach at an address of this machine.
* GOVERBS_CALL: Forces one way to call libibverbs: blocking or system.
* GOVERBS_STATS: Directory in which programs that use goverbs publish what they count; goverbs top and goverbs exporter `+
			`ask those of it.
* GOVERBS_TRACE: File in which a program that uses goverbs records its verbs, posts and completions; %p in it stands `+
			`for the process ID. goverbs trace reads it.`).
		WithSection("Version", version()).
		WithSection("See also", "ibv_devinfo(1), ib_send_bw(1), rdma(8), verbs(7)")
	// Options are copied from terminals: neither minus signs nor accents become typographic ones.
	text := strings.NewReplacer("-", `\-`, "^", `\(ha`, "~", `\(ti`).Replace(page.Build(manText{roff.NewDocument()}))
	return o.print(plain{text})
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
