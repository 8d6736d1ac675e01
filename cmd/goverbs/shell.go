// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"maps"
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

	"github.com/goverbs/goverbs/rdma"
)

// shellCommands integrate goverbs with shells and man.
type shellCommands struct {
	Completion completionCommand `cmd:"" help:"Print a shell completion script."`
	Man        manCommand        `cmd:"" help:"Print the man page."`
	Complete   completeCommand   `cmd:"" hidden:""`
}

// completionScripts run goverbs complete with the command line in COMP_LINE. If it prints
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
	line := os.Getenv("COMP_LINE")
	if line == "" {
		return nil
	}
	words := completionWords(line, os.Getenv("COMP_POINT"))
	last := words[len(words)-1]
	for _, option := range completeLast(o.parser.Model.Node, words[:len(words)-1], strings.HasPrefix(last, "-")) {
		if strings.HasPrefix(option, last) {
			fmt.Fprintln(o.w, option)
		}
	}
	return nil
}

// completionWords returns the words of a command line after the program, up to the cursor. The last one is to be
// completed; it is the value in FLAG=VALUE.
func completionWords(line, point string) []string {
	if at, err := strconv.Atoi(point); err == nil && at >= 0 && at < len(line) {
		line = line[:at]
	}
	words := append(strings.Fields(line), "")
	if strings.TrimRightFunc(line, unicode.IsSpace) == line && len(words) > 2 { // the cursor is at the end of a word
		words = words[:len(words)-1]
	}
	if flag, value, ok := strings.Cut(words[len(words)-1], "="); ok {
		words = append(words[:len(words)-1], flag, value)
	}
	return words[1:]
}

// completeLast returns the possible words after others: subcommands and values, or flags.
func completeLast(node *kong.Node, before []string, flags bool) (options []string) {
	var value *kong.Value // of the flag before
	position := 0         // among the arguments
	for _, word := range before {
		child := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word })
		switch {
		case value != nil:
			value = nil
		case strings.HasPrefix(word, "-"):
			value = flagValue(node, word)
		case child >= 0:
			node, position = node.Children[child], 0
		default:
			position++
		}
	}
	switch n := len(node.Positional); {
	case value != nil:
		return completeValue(value)
	case flags:
		for _, group := range node.AllFlags(true) {
			for _, f := range group {
				if options = append(options, "--"+f.Name); f.Short != 0 {
					options = append(options, "-"+string(f.Short))
				}
			}
		}
		return options
	case position < n:
		options = completeValue(node.Positional[position])
	case n > 0 && node.Positional[n-1].IsCumulative():
		options = completeValue(node.Positional[n-1])
	}
	for _, child := range node.Children {
		if !child.Hidden {
			options = append(options, child.Name)
		}
	}
	return options
}

// flagValue returns the value that follows a flag as the next word, or nil.
func flagValue(node *kong.Node, word string) *kong.Value {
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if !f.IsBool() && (word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short)) {
				return f.Value
			}
		}
	}
	return nil
}

func completeValue(v *kong.Value) (options []string) {
	switch {
	case v.Tag.Get("predictor") == "device":
		infos, _ := rdma.Devices() // no devices, no completions
		for _, i := range infos {
			options = append(options, i.Name)
		}
	case v.Enum != "":
		options = slices.Sorted(maps.Keys(v.EnumMap()))
	}
	return options
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
