// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

type summaryCmd struct {
	Short bool `help:"One line per header directory, without footnotes."`
}

// Run prints the number of emitted, excepted and missing declarations per header and kind, and of symbols per library.
func (c *summaryCmd) Run(t tree) error {
	res, err := t.result()
	if err != nil {
		return err
	}
	fmt.Printf("%s → generated/\n\n", sourcesOf(res))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	if c.Short {
		printHeaders(w, res)
		return printLibraries(w, res)
	}
	fmt.Fprintln(w, "header\tkind\tdeclared\temitted\texcepted\tmissing\t")
	var sum generate.Count
	for _, h := range res.Coverage {
		for _, kind := range generate.Kinds {
			n := h.By[kind]
			if n.Total == 0 {
				continue
			}
			name := h.Header
			if h.GOOS != "linux" {
				name = h.GOOS + " " + name
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t\n", name, kind, n.Total, n.Emitted, n.Excepted, len(n.Missing))
			add(&sum, n)
		}
	}
	fmt.Fprintf(w, "all\t\t%d\t%d\t%d\t%d\t\n", sum.Total, sum.Emitted, sum.Excepted, len(sum.Missing))
	if err := printLibraries(w, res); err != nil {
		return err
	}
	printExcepted(res)
	for _, plan := range res.Plans {
		if text := rules.RenderPostSend(plan.Model, slices.Concat(plan.Grids, plan.Parts)); text != "" {
			fmt.Printf("\n%s", text)
		}
	}
	fmt.Println("\nmake tables prints all tables.")
	return nil
}

// printHeaders prints a line for each directory of headers.
func printHeaders(w io.Writer, res *generate.Result) {
	fmt.Fprintln(w, "directory\theaders\tdeclarations\tin Go\texcepted\tmissing\t")
	type line struct {
		generate.Count
		headers int
	}
	var dirs []string
	lines := map[string]*line{}
	for _, h := range res.Coverage {
		dir := path.Join("/usr/include", path.Dir(h.Header))
		if h.GOOS != "linux" {
			dir = h.GOOS + " " + dir
		}
		if lines[dir] == nil {
			dirs, lines[dir] = append(dirs, dir), new(line)
		}
		lines[dir].headers++
		for _, kind := range generate.Kinds {
			add(&lines[dir].Count, h.By[kind])
		}
	}
	for _, dir := range dirs {
		n := lines[dir]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", dir, n.headers, n.Total, n.Emitted, n.Excepted, len(n.Missing))
	}
}

// printLibraries flushes w and prints a line for each library with recorded symbols.
func printLibraries(w *tabwriter.Writer, res *generate.Result) error {
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	fmt.Fprintln(w, "library\tversions\tsymbols\tof old versions\tobjects\tin no header\t")
	for _, r := range res.Primary {
		declared := map[string]bool{}
		for _, h := range r.Headers {
			for _, f := range h.Funcs {
				declared[f.Name] = f.Inline == nil
			}
		}
		for _, l := range r.Libraries {
			count := func(is func(model.Symbol) bool) (n int) {
				for _, s := range l.Symbols {
					if is(s) {
						n++
					}
				}
				return n
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", l.Name, len(l.Versions), len(l.Symbols),
				count(func(s model.Symbol) bool { return s.Old }), count(func(s model.Symbol) bool { return s.Object }),
				count(func(s model.Symbol) bool { return !declared[s.Name] }))
		}
	}
	return w.Flush()
}

// add adds a count to a sum.
func add(sum, n *generate.Count) {
	sum.Total += n.Total
	sum.Emitted += n.Emitted
	sum.Excepted += n.Excepted
	sum.Missing = append(sum.Missing, n.Missing...)
}

// printExcepted lists the declarations and headers that are excluded from generation, grouped by reason.
func printExcepted(res *generate.Result) {
	var reasons []string
	names := map[string][]string{}
	add := func(rows []rules.Exception) {
		for _, e := range rows {
			if names[e.Why] == nil {
				reasons = append(reasons, e.Why)
			}
			names[e.Why] = append(names[e.Why], e.C)
		}
	}
	for _, plan := range res.Plans {
		add(plan.Skipped)
		if plan.Verbs != nil {
			add(plan.Verbs.Skipped)
		}
	}
	add(res.Unread)
	fmt.Println("\nexcepted:")
	for _, why := range reasons {
		fmt.Printf("  %s: %s\n", strings.Join(names[why], ", "), why)
	}
}
