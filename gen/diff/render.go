package diff

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
)

// headings of the kinds in a text report.
var headings = map[Kind]string{
	Record: "structures and unions", Member: "members", Slot: "slots", Enum: "enums", Enumerator: "enumerators", Constant: "constants",
	Macro: "macros", Function: "functions", Dispatch: "dispatch of inline functions", Column: "columns", Row: "rows", Cell: "cells",
	FlagRule: "flags", GoName: "Go identifiers",
}

// JSON renders the report for programs.
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

// Text renders the report for a reviewer: what breaks first, then everything by place and kind.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rdma-core %s → %s: %s (exit status %d)\n", r.Old, r.New, r.Verdict, r.Verdict.ExitStatus())
	fmt.Fprintf(&b, "%d breaking, %d additive, %d without effect\n", r.Count(Breaking), r.Count(Additive), r.Count(None))
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	if r.Count(Breaking) > 0 {
		b.WriteString("\nBreaking\n")
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, e := range r.Entries {
			if e.Verdict == Breaking {
				fmt.Fprintf(w, "  %s\t%s %s\t%s\n", e.Where, e.Name, e.Change, e.Reason)
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

// marks are what a verdict looks like at the start of a line.
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
			line := fmt.Sprintf("  %s %s\t%s\t%s", marks[e.Verdict], e.Name, e.Change, e.detail())
			if e.Reason != "new" && e.Reason != "gone" {
				line += "\t" + e.Reason
			}
			fmt.Fprintln(w, strings.TrimRight(line, "\t "))
		}
		w.Flush()
		from = to
	}
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
