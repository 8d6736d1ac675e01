// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

var csvHeader = []string{"case", "batch", "impl", "min_ns", "median_ns", "ratio_to_c"}

// csvOf writes those plain cells that are polls, or the other ones.
func csvOf(w io.Writer, all results, polls bool) error {
	out := csv.NewWriter(w)
	out.Write(csvHeader)
	for _, c := range cells() {
		if !c.plain() || (c.name == casePoll) != polls {
			continue
		}
		for _, impl := range implementations {
			f := all[c][impl.name]
			out.Write([]string{c.name, strconv.Itoa(c.batch), impl.name, number(f.min), number(f.median),
				number(all.ratio(c, impl.name))})
		}
	}
	out.Flush()
	return out.Error()
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// table writes Markdown: a table for each setting, with a row for each case and a column for each implementation.
func table(w io.Writer, all results) {
	var last cell
	for _, c := range cells() {
		if setting := (cell{stub: c.stub, qps: c.qps, goroutines: c.goroutines}); setting != last {
			last = setting
			fmt.Fprintf(w, "\n### %s\n\n| case | batch |", title(c))
			for _, impl := range implementations {
				fmt.Fprintf(w, " %s |", impl.name)
			}
			fmt.Fprintf(w, "\n|---|---:|%s\n", strings.Repeat("---:|", len(implementations)))
		}
		fmt.Fprintf(w, "| %s | %d |", c.name, c.batch)
		for _, impl := range implementations {
			f, ok := all[c][impl.name]
			switch {
			case !ok:
				fmt.Fprint(w, " – |")
			case impl.name == implC:
				fmt.Fprintf(w, " %.1f / %.1f |", f.min, f.median)
			default:
				fmt.Fprintf(w, " %.1f / %.1f (%.2f) |", f.min, f.median, all.ratio(c, impl.name))
			}
		}
		fmt.Fprintln(w)
	}
}

func title(c cell) string {
	s := map[stubKind]string{stubReturn: "Stub that returns immediately",
		stubWQE: "Stub that writes a 64-byte WQE for each work request and rings a doorbell"}[c.stub]
	s += fmt.Sprintf(", %d QP", c.qps)
	if c.qps > 1 {
		s += "s in turn"
	}
	if c.goroutines > 1 {
		s += fmt.Sprintf(", %d goroutines (threads in C) on it at once", c.goroutines)
	}
	return s
}

const heading = `# Posting and polling: Go against C

Written by ` + "`make bench`" + `. Minimum / median of the samples, in ns per call for a complete list or
per poll, and in parentheses the ratio of the minimum to C's. With several goroutines, the elapsed time is divided by the
number of calls of all goroutines.
`

// write writes post.csv, poll.csv, post.md and post.svg to a directory.
func write(dir string, all results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]func(io.Writer) error{
		"post.csv": func(w io.Writer) error { return csvOf(w, all, false) },
		"poll.csv": func(w io.Writer) error { return csvOf(w, all, true) },
		"post.svg": func(w io.Writer) error { return chart(w, all) },
		"post.md": func(w io.Writer) error {
			fmt.Fprintf(w, "%s\n%s, %s/%s, %d CPUs.\n", heading, runtime.Version(), runtime.GOOS, runtime.GOARCH,
				runtime.NumCPU())
			table(w, all)
			fmt.Fprint(w, "\n## Targets, on minima\n\n")
			printTargets(w, all)
			return nil
		},
	} {
		var text strings.Builder
		if err := content(&text); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
