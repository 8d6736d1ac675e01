// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// runner is a subcommand.
type runner interface{ Run(o output) error }

// parse reads a command line as kong's own Parse does, but for its hooks, and for its last check, which complete does:
// they look for methods by names that only the running program knows, for which the linker would keep all methods of
// all types, 2.7 MB of them. A test compares both.
func parse(k *kong.Kong, args []string) (*kong.Context, error) {
	at, err := kong.Trace(k, args)
	if err == nil {
		err = at.Error
	}
	if err != nil {
		return nil, err
	}
	for _, p := range at.Path {
		if p.Flag != nil && p.Flag == k.Model.HelpFlag {
			return at, errors.Join(at.PrintUsage(false), errEnded)
		}
		if p.Flag != nil && p.Flag.Name == "version" {
			_, err := fmt.Fprintln(k.Stdout, version())
			return at, errors.Join(err, errEnded)
		}
	}
	if err := at.Reset(); err != nil {
		return nil, err
	}
	if _, err := at.Apply(); err != nil {
		return nil, err
	}
	return at, complete(at)
}

// errEnded says that the command line asked for help or the version, which are printed.
var errEnded = errors.New("ended")

// complete says what is missing, or cannot be meant.
func complete(at *kong.Context) error {
	node := at.Model.Node
	for _, p := range at.Path {
		if n := p.Node(); n != nil {
			node = n
			for _, v := range n.Values() {
				if err := listed(v); err != nil {
					return err
				}
			}
		}
	}
	if err := missing(node); err != nil {
		return err
	}
	for _, p := range at.Path {
		if err := together(p.Flags); err != nil {
			return err
		}
	}
	return nil
}

// listed says that a value is none of those that there are.
func listed(v *kong.Value) error {
	if v.Enum == "" || !v.Set && !v.HasDefault {
		return nil
	}
	words, ok := v.Target.Interface().([]string)
	if !ok {
		words = []string{v.Target.String()}
	}
	for _, word := range words {
		if all := v.EnumSlice(); !slices.Contains(all, word) {
			return fmt.Errorf("%s must be one of %s but got %q", v.ShortSummary(), quoted(all, ","), word)
		}
	}
	return nil
}

// missing says what has to follow: arguments, or a subcommand.
func missing(n *kong.Node) error {
	var words, lacking []string
	for _, a := range n.Positional {
		if a.Required && !a.Set {
			lacking = append(lacking, a.Summary())
		}
	}
	if len(lacking) > 0 {
		words = append(words, strconv.Quote(strings.Join(lacking, " ")))
	}
	for _, child := range n.Children {
		if !child.Hidden {
			words = append(words, strconv.Quote(child.Name))
		}
	}
	switch {
	case len(words) == 0:
		return nil
	case len(words) == 1:
		return fmt.Errorf("expected %s", words[0])
	case len(words) > 5:
		words = append(words[:5], "...")
	}
	return fmt.Errorf("expected one of %s", strings.Join(words, ", "))
}

// together says which options exclude each other.
func together(flags []*kong.Flag) error {
	seen := map[string]*kong.Flag{}
	for _, f := range flags {
		for _, group := range f.Xor {
			if other := seen[group]; f.Set && other != nil {
				return fmt.Errorf("--%s and --%s can't be used together", other.Name, f.Name)
			}
			if f.Set {
				seen[group] = f
			}
		}
	}
	return nil
}

func quoted(all []string, between string) string {
	var words []string
	for _, word := range all {
		words = append(words, strconv.Quote(word))
	}
	return strings.Join(words, between)
}
