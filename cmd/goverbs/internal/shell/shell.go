// SPDX-License-Identifier: BSD-2-Clause

// Package shell completes command lines: what may stand where the cursor is, from the command's own declarations, and
// a few lines for each shell that ask for it.
package shell

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Shells have a script.
var Shells = []string{"bash", "zsh", "fish"}

// scripts ask goverbs complete, with the words up to the cursor. Where it knows nothing, shells offer files.
var scripts = map[string]string{
	"bash": `# goverbs in bash. Once: source <(goverbs completion bash); for good: put the output into
# ~/.local/share/bash-completion/completions/goverbs
_goverbs() {
	local IFS=$'\n'
	COMPREPLY=($(goverbs complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _goverbs goverbs
`,
	"zsh": `#compdef goverbs
# goverbs in zsh. Once: source <(goverbs completion zsh); for good: put the output into a file _goverbs of a
# directory of $fpath.
_goverbs() {
	local line
	local -a all
	for line in "${(@f)$(goverbs complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
		[[ -n $line ]] && all+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done
	if (( $#all )); then
		_describe goverbs all
	else
		_files
	fi
}
if [[ $funcstack[1] == _goverbs ]]; then
	_goverbs "$@"
else
	compdef _goverbs goverbs
fi
`,
	"fish": `# goverbs in fish. Once: goverbs completion fish | source; for good: put the output into
# ~/.config/fish/completions/goverbs.fish
function __goverbs_complete
	set -l words (commandline -opc) (commandline -ct)
	goverbs complete -- $words[2..-1] 2>/dev/null
end
complete -c goverbs -f -a '(__goverbs_complete)'
complete -c goverbs -n 'test -z "$(__goverbs_complete)"' -F
`,
}

// Script is what a shell reads to complete the command.
func Script(shell string) (string, error) {
	if s, ok := scripts[shell]; ok {
		return s, nil
	}
	return "", fmt.Errorf("there is no completion for %q: %s have one", shell, strings.Join(Shells, ", "))
}

// Candidate is a word that may stand where the cursor is.
type Candidate struct {
	Word string `json:"word"`
	Help string `json:"help,omitempty"`
}

// Sources give words for a tag complete:"NAME", such as the names of devices. Any other text in such a tag is a list
// of words with commas between them.
type Sources map[string]func() []Candidate

// Complete gives what may stand in place of the last word, which may be empty, behind the others.
func Complete(app *kong.Application, words []string, sources Sources) []Candidate {
	if len(words) == 0 {
		words = []string{""}
	}
	at := position{node: app.Node}
	for _, w := range words[:len(words)-1] {
		at.pass(w)
	}
	last := words[len(words)-1]
	var all []Candidate
	for _, c := range at.candidates(&last, sources) {
		if strings.HasPrefix(c.Word, last) {
			all = append(all, c)
		}
	}
	return all
}

// position is where the words so far lead.
type position struct {
	node       *kong.Node
	value      *kong.Flag // waits for its value
	positional int        // how many arguments there were
	noFlags    bool       // behind --
}

// pass goes on by a word.
func (p *position) pass(word string) {
	switch {
	case word == "=": // bash has it as a word of its own
	case p.value != nil:
		p.value = nil
	case p.noFlags || !strings.HasPrefix(word, "-") || word == "-":
		for _, child := range p.node.Children {
			if !p.noFlags && (child.Name == word || slices.Contains(child.Aliases, word)) {
				p.node, p.positional = child, 0
				return
			}
		}
		p.positional++
	case word == "--":
		p.noFlags = true
	default:
		if f := p.flag(word); f != nil && !f.IsBool() && !f.IsCounter() {
			p.value = f
		}
	}
}

// flag is what a word names that has no value in itself, or nil.
func (p *position) flag(word string) *kong.Flag {
	for _, group := range p.node.AllFlags(false) {
		for _, f := range group {
			if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
				return f
			}
		}
	}
	return nil
}

// candidates are those at a position. Of --flag=value, they are of the value, and last is made to be that: shells take
// "=" for a word's end, all but zsh and fish, for which the flag stands in front again.
func (p *position) candidates(last *string, sources Sources) []Candidate {
	if *last == "=" {
		*last = ""
	}
	if p.value != nil {
		return of(p.value.Value, sources)
	}
	if name, _, ok := strings.Cut(*last, "="); ok && strings.HasPrefix(name, "-") && !p.noFlags {
		var all []Candidate
		if f := p.flag(name); f != nil {
			for _, c := range of(f.Value, sources) {
				all = append(all, Candidate{name + "=" + c.Word, c.Help})
			}
		}
		return all
	}
	var all []Candidate
	if strings.HasPrefix(*last, "-") && !p.noFlags {
		for _, group := range p.node.AllFlags(true) {
			for _, f := range group {
				all = append(all, Candidate{"--" + f.Name, f.Help})
			}
		}
		return all
	}
	for _, child := range p.node.Children {
		if !child.Hidden {
			all = append(all, Candidate{child.Name, child.Help})
		}
	}
	if n := len(p.node.Positional); n > 0 {
		arg := p.node.Positional[min(p.positional, n-1)]
		if p.positional < n || arg.IsCumulative() {
			all = append(all, of(arg, sources)...)
		}
	}
	return all
}

// of are the words that a value may have.
func of(v *kong.Value, sources Sources) []Candidate {
	var all []Candidate
	if v.Enum != "" {
		for _, word := range v.EnumSlice() {
			all = append(all, Candidate{Word: word})
		}
		return all
	}
	named := cmp.Or(v.Tag.Get("complete"), v.Name)
	if source, ok := sources[named]; ok {
		return source()
	}
	if words := v.Tag.Get("complete"); words != "" {
		for word := range strings.SplitSeq(words, ",") {
			all = append(all, Candidate{Word: word})
		}
	}
	if v.Target.Kind() == reflect.Bool {
		all = append(all, Candidate{Word: "true"}, Candidate{Word: "false"})
	}
	return all
}
