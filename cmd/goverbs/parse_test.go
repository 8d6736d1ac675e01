// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parsed is what a command line gives.
type parsed struct {
	commands commands
	command  string
	problem  string
	help     string
}

// parsedBy reads a command line with a function.
func parsedBy(t require.TestingT, args []string, by func(*kong.Kong, []string) (*kong.Context, error)) (p parsed) {
	var help bytes.Buffer
	k, err := kong.New(&p.commands, kong.Name("goverbs"), kong.Writers(&help, &help), variables(),
		kong.Exit(func(int) { panic(errEnded) }))
	require.NoError(t, err)
	defer func() { // kong's own ends so
		if r := recover(); r != nil {
			require.Equal(t, errEnded, r)
			p.commands, p.help = commands{}, help.String()
		}
	}()
	at, err := by(k, args)
	switch {
	case errors.Is(err, errEnded):
		panic(errEnded)
	case err != nil:
		p.commands, p.problem = commands{}, err.Error()
	default:
		p.command = at.Command()
	}
	return p
}

// words of command lines: all names that there are, and what may stand behind them.
func commandWords(t require.TestingT) []string {
	k, err := kong.New(&commands{}, variables())
	require.NoError(t, err)
	all := []string{"soft0", "12", "x", "-1", "", "--", "--help", "-h", "--nonsense", "--kind=rc,x", "-k", "rc", "-f",
		"text", "--bw", "--lat", "zsh", "send", "--format=pdf", "--sort=qp", "parse_test.go", "-s", "--json=no", "-aeR",
		"-q4"}
	var add func(n *kong.Node)
	add = func(n *kong.Node) {
		for _, f := range n.Flags {
			if f.Name != "version" { // which is kong's own in no program but this one's
				all = append(all, "--"+f.Name)
			}
		}
		for _, child := range n.Children {
			all = append(all, child.Name)
			add(child)
		}
	}
	add(k.Model.Node)
	return all
}

// TestParse: a command line means what it means to kong's own Parse, with the same errors.
func TestParse(t *testing.T) {
	t.Setenv("GOVERBS_STATS", "stats")
	same := func(t require.TestingT, args []string) parsed {
		own := parsedBy(t, args, parse)
		require.Equal(t, parsedBy(t, args, (*kong.Kong).Parse), own, "%q", args)
		return own
	}
	var good, bad int
	for line := range strings.Lines(`devices
--json
--json gids soft0
gids a b
query
explain
explain RDMA_READ UC
ping
ping -k rc,x host
ping -k rc,ud host --json
ping --count=many host
perf
perf send --bw --lat
perf send -aeR -q4 -s 64k host
trace
trace record
trace record -- sh -c true
trace show nothing.there
trace show -f pdf parse_test.go
completion
completion tcsh
top -s nonsense
top -s qp -p 1,2
run
run -- x -- y --json
perf --help
trace --help
--help
layout
abi --only all
complete -- perf --
--nonsense
nonsense
`) {
		if own := same(t, strings.Fields(line)); own.problem == "" {
			good++
		} else {
			bad++
		}
	}
	assert.Greater(t, good, 10)
	assert.Greater(t, bad, 10)
	words := rapid.SliceOfN(rapid.SampledFrom(commandWords(t)), 1, 5)
	rapid.Check(t, func(t *rapid.T) { same(t, words.Draw(t, "args")) })
}

// TestEveryCommandRuns: each subcommand can be carried out.
func TestEveryCommandRuns(t *testing.T) {
	k, err := kong.New(&commands{}, variables())
	require.NoError(t, err)
	for _, leaf := range k.Model.Leaves(false) {
		assert.Implements(t, (*runner)(nil), leaf.Target.Addr().Interface(), leaf.Path())
	}
}

// TestVersionAnywhere: --version ends, whatever else there is.
func TestVersionAnywhere(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"perf", "--version"}, {"ping", "host", "--version"}} {
		var out, problems bytes.Buffer
		assert.Equal(t, exitOK, run(args, &out, &problems), "%q: %s", args, &problems)
		assert.Equal(t, version()+"\n", out.String())
	}
}
