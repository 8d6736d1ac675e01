// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// headings maps kinds to headings of the text report.
var headings = map[Kind]string{
	Record: "structures and unions", Member: "members", Slot: "slots", Enum: "enums", Enumerator: "enumerators",
	Constant: "constants",
	Macro:    "macros", Function: "functions", FuncType: "types of functions",
	Dispatch: "dispatch of inline functions", Column: "columns", Row: "rows",
	Cell:     "cells",
	FlagRule: "flags", GoName: "Go identifiers",
	Library: "libraries", SymbolVersion: "versions of symbols", Symbol: "symbols",
}

// JSON formats the report as JSON.
func (r *Report) JSON() ([]byte, error) {
	out := *r
	if out.Entries == nil {
		out.Entries = []Entry{}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	err := enc.Encode(out)
	return []byte(b.String()), err
}

// Text formats the report as text, with the exit status.
func (r *Report) Text() string {
	return fmt.Sprintf("%s (exit status %d)\n%s", r.Title(), r.Verdict.ExitStatus(), r.Body())
}

// Title names the compared releases and the verdict.
func (r *Report) Title() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s → %s: %s", r.Project, r.Old, r.New, r.Verdict))
}

// Body lists breaking changes, and then all changes by place and kind.
func (r *Report) Body() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d breaking, %d additive, %d without effect\n", r.Count(Breaking), r.Count(Additive),
		r.Count(None))
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	if r.Count(Breaking) > 0 {
		b.WriteString("\nBreaking\n")
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, e := range r.Entries {
			if e.Verdict == Breaking {
				fmt.Fprintln(w, columns("  "+e.Where, e.Name+" "+string(e.Change), e.Reason))
			}
		}
		w.Flush()
	}
	for from := 0; from < len(r.Entries); {
		to := from
		for to < len(r.Entries) && r.Entries[to].Where == r.Entries[from].Where {
			to++
		}
		fmt.Fprintf(&b, "\n%s\n", r.Entries[from].Where)
		renderPlace(&b, r.Entries[from:to])
		from = to
	}
	return b.String()
}

// marks maps verdicts to the marks at the start of a line.
var marks = map[Verdict]string{None: " ", Additive: "+", Breaking: "!"}

func renderPlace(b *strings.Builder, entries []Entry) {
	for from := 0; from < len(entries); {
		to := from
		for to < len(entries) && entries[to].Kind == entries[from].Kind {
			to++
		}
		fmt.Fprintf(b, "  %s\n", headings[entries[from].Kind])
		w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		for _, e := range entries[from:to] {
			reason := e.Reason
			if reason == "new" || reason == "gone" {
				reason = ""
			}
			fmt.Fprintln(w, columns("  "+marks[e.Verdict]+" "+e.Name, string(e.Change), e.detail(), reason))
		}
		w.Flush()
		from = to
	}
}

// widest limits the width of a column. Cells after a wider one go to the next line, so that other lines are not padded
// to its width.
const widest = 96

// columns joins the cells of a line for a tabwriter.
func columns(cells ...string) string {
	for len(cells) > 0 && cells[len(cells)-1] == "" {
		cells = cells[:len(cells)-1]
	}
	line := ""
	for i, cell := range cells {
		line += cell
		switch {
		case i == len(cells)-1:
		case utf8.RuneCountInString(cell) > widest:
			line += "\n    " + strings.Repeat("\t", i+1)
		default:
			line += "\t"
		}
	}
	return line
}

func (e Entry) detail() string {
	switch {
	case e.Old != "" && e.New != "":
		return e.Old + " → " + e.New
	case e.Old != "":
		return "was " + e.Old
	}
	return e.New
}
