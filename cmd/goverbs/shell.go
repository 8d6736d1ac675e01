// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/alecthomas/kong"
	mangokong "github.com/alecthomas/mango-kong"
	"github.com/muesli/roff"
	"github.com/posener/complete"
	"github.com/willabides/kongplete"

	"github.com/goverbs/goverbs/rdma"
)

// shellCommands integrate goverbs with shells and man.
type shellCommands struct {
	Completion completionCommand `cmd:"" help:"Print a shell completion script."`
	Man        manCommand        `cmd:"" help:"Print the man page."`
	Complete   completeCommand   `cmd:"" hidden:""`
}

// completionScripts run goverbs complete with the command line in COMP_LINE, as package complete expects. If it prints
// nothing, the shell completes file names.
var completionScripts = map[string]string{
	"bash": `# bash completion for goverbs. Load it: source <(goverbs completion bash); install it: write the output to
# ~/.local/share/bash-completion/completions/goverbs
complete -o default -C 'goverbs complete' goverbs
`,
	"zsh": `# zsh completion for goverbs. Load it with source <(goverbs completion zsh). To install it, add that
# line to ~/.zshrc after compinit.
autoload -U +X bashcompinit && bashcompinit
complete -o default -C 'goverbs complete' goverbs
`,
	"fish": `# fish completion for goverbs. Load it: goverbs completion fish | source; install it: write the output to
# ~/.config/fish/completions/goverbs.fish
function __goverbs_complete
	COMP_LINE=(commandline -cp | string collect) goverbs complete
end
complete -c goverbs -f -a '(__goverbs_complete)'
complete -c goverbs -n 'test -z "$(__goverbs_complete)"' -F
`,
}

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

func (c completionCommand) Run(o output) error { return o.print(plain{completionScripts[c.Shell]}) }

// plain is literal text.
type plain struct {
	Text string `json:"text"`
}

func (s plain) WriteText(w io.Writer) error {
	_, err := io.WriteString(w, s.Text)
	return err
}

// completeCommand prints the completions of COMP_LINE. Bash also passes words as arguments, which are ignored.
type completeCommand struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

func (completeCommand) Run(o output) error {
	devices := complete.PredictFunc(func(complete.Args) (names []string) {
		infos, _ := rdma.Devices() // no devices, no completions
		for _, i := range infos {
			names = append(names, i.Name)
		}
		return names
	})
	command, err := kongplete.Command(o.parser, kongplete.WithPredictor("device", devices))
	if err != nil {
		return err
	}
	line := os.Getenv("COMP_LINE")
	if line == "" {
		return nil
	}
	words := completionWords(line, os.Getenv("COMP_POINT"))
	for _, option := range command.Predict(words) {
		if strings.HasPrefix(option, words.Last) {
			fmt.Fprintln(o.w, option)
		}
	}
	return nil
}

// completionWords returns the words of a command line up to the cursor. Package complete does the same, but its code to
// install completions adds 200 KB to the command.
func completionWords(line, point string) (words complete.Args) {
	if at, err := strconv.Atoi(point); err == nil && at >= 0 && at < len(line) {
		line = line[:at]
	}
	all := append(strings.Fields(line), "")
	if strings.TrimRightFunc(line, unicode.IsSpace) == line && len(all) > 1 { // the cursor is at the end of a word
		all = all[:len(all)-1]
	}
	if flag, value, ok := strings.Cut(all[len(all)-1], "="); ok {
		all = append(all[:len(all)-1], flag, value)
	}
	words.Last = all[len(all)-1]
	if len(all) > 1 {
		words.All, words.Completed = all[1:], all[1:len(all)-1]
	}
	if n := len(words.Completed); n > 0 {
		words.LastCompleted = words.Completed[n-1]
	}
	return words
}

type manCommand struct{}

// manText is a roff document. roff's Text treats its argument as a format; mango passes it the long description as the
// heading and the current time as the date.
type manText struct{ *roff.Document }

func (m manText) Heading(section uint, title, _ string, now time.Time) {
	_, date := buildVersion()
	if day, err := time.Parse(time.DateOnly, date); err == nil {
		now = day
	}
	m.Document.Heading(section, title, "User Commands", now)
}

func (m manText) Text(s string)     { m.Document.Text(strings.ReplaceAll(s, "%", "%%")) }
func (m manText) TextBold(s string) { m.Document.TextBold(strings.ReplaceAll(s, "%", "%%")) }

func (manCommand) Run(o output) error {
	for _, command := range o.parser.Model.Leaves(true) {
		for _, a := range command.Positional { // mango prints only their names
			command.Help += fmt.Sprintf(" %s: %s", a.Summary(), a.Help)
		}
		command.Flags = slices.DeleteFunc(command.Flags, func(f *kong.Flag) bool { return f.Hidden })
	}
	page := mangokong.NewManPage(1, o.parser.Model).
		WithSection("Exit status", `* 0: Success. serve, top, exporter, s3 and echo --listen also exit with 0 when interrupted.
* 1: Failure, or doctor found a problem.
* 2: Unknown command, flag or argument.
* 3: abi or diff found a difference.
* 128 + N: Interrupted by signal N (130 for Ctrl-C). run and trace record exit with the code of their program, or `+
			`with 128 + N if signal N ended it.`).
		WithSection("Environment", `* GOVERBS_DEVICE: Default device: mlx5_0; soft0, an in-process software device; `+
			`soft@ADDRESS, a software device that other hosts reach at an address of this host.
* GOVERBS_NATIVE: 1 opens kernel devices without rdma-core.
* GOVERBS_CALL: How to call libibverbs: blocking or system.
* GOVERBS_STATS: Directory in which goverbs programs publish statistics; goverbs top and goverbs exporter read them.
* GOVERBS_TRACE: File in which a goverbs program records its verbs, posts and completions; %p stands for the process `+
			`ID. Read it with goverbs trace.`).
		WithSection("Version", version()).
		WithSection("See also", "ibv_devinfo(1), ib_send_bw(1), rdma(8), verbs(7)")
	// Keep minus signs, carets and tildes as ASCII, so that flags can be copied.
	text := strings.NewReplacer("-", `\-`, "^", `\(ha`, "~", `\(ti`).Replace(page.Build(manText{roff.NewDocument()}))
	return o.print(plain{text})
}

// version is what --version prints.
func version() string {
	v, date := buildVersion()
	if date != "" {
		date = " of " + date
	}
	return fmt.Sprintf("goverbs %s%s, %s, %s/%s", v, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// buildVersion returns the version of the module, and the date of its commit if known.
func buildVersion() (version, date string) {
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
