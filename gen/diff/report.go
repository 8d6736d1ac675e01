// SPDX-License-Identifier: BSD-2-Clause

// Package diff compares two recorded releases. It lists additions, removals, moves, and changes of size, value, type or
// name in C and in the generated Go, each with a verdict for existing programs. The code contains no C names: facts
// that C declarations do not show are in judgements.txt, with reasons.
package diff

import "slices"

// Verdict is the effect of a change on programs built for the old release.
type Verdict int

const (
	None     Verdict = iota // no effect on programs
	Additive                // something was added; everything else is unchanged
	Breaking                // something that programs rely on was removed or changed
)

var verdictNames = []string{"none", "additive", "breaking"}

func (v Verdict) String() string { return verdictNames[v] }

// MarshalText returns the verdict's name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Exit statuses of commands that report a difference. 1 and 2 are for errors and wrong usage.
const (
	ExitNone     = 0
	ExitAdditive = 3
	ExitBreaking = 4
)

// ExitStatus returns the exit status of a verdict.
func (v Verdict) ExitStatus() int { return []int{ExitNone, ExitAdditive, ExitBreaking}[v] }

// Kind is the kind of a changed declaration.
type Kind string

const (
	Record     Kind = "record" // structure, union or opaque type
	Member     Kind = "member"
	Slot       Kind = "slot" // member that points to a function
	Enum       Kind = "enum"
	Enumerator Kind = "enumerator"
	Constant   Kind = "constant" // macro with a value
	Macro      Kind = "macro"    // alias, function-like or other text
	Function   Kind = "function"
	FuncType   Kind = "function type" // typedef of a callback
	Dispatch   Kind = "dispatch"      // how an inline function reaches the function that it calls
	Row        Kind = "row"           // row of a table in a man page
	Column     Kind = "column"
	Cell       Kind = "cell" // cell of a table in a man page, or cells of a generated table
	FlagRule   Kind = "flag rule"
	GoName     Kind = "Go identifier"

	Library       Kind = "library"        // shared library
	SymbolVersion Kind = "symbol version" // defined by a library
	Symbol        Kind = "symbol"         // symbol exported by a library, with its version: name@@VERSION
)

// kinds lists the kinds in report order.
var kinds = []Kind{Record, Member, Slot, Enum, Enumerator, Constant, Macro, Function, FuncType, Dispatch,
	Library, SymbolVersion, Symbol, Column, Row, Cell, FlagRule, GoName}

// Change is the kind of a change.
type Change string

const (
	Added    Change = "added"
	Removed  Change = "removed"
	Moved    Change = "moved"
	Resized  Change = "resized"
	Revalued Change = "revalued"
	Retyped  Change = "retyped"
	Renamed  Change = "renamed"
	Changed  Change = "changed"
)

// Entry is one change.
type Entry struct {
	Where   string  `json:"where"` // header, library, man page, "table post_send", or "package ibv"
	Kind    Kind    `json:"kind"`
	Name    string  `json:"name"` // C name with the full path of a member, table and cells, or Go identifier
	Change  Change  `json:"change"`
	Old     string  `json:"old,omitempty"`
	New     string  `json:"new,omitempty"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
}

// Report lists the changes between two releases.
type Report struct {
	Project string   `json:"project"`
	Old     string   `json:"old"`
	New     string   `json:"new"`
	Verdict Verdict  `json:"verdict"` // the most severe verdict of the entries
	Entries []Entry  `json:"entries"`
	Notes   []string `json:"notes,omitempty"` // parts that were not compared, with reasons
}

// Count returns the number of entries with a verdict.
func (r *Report) Count(v Verdict) int {
	n := 0
	for _, e := range r.Entries {
		if e.Verdict == v {
			n++
		}
	}
	return n
}

// finish sorts the entries by place, kind and header order, and sets the verdict of the report.
func (r *Report) finish(places []string) {
	at := map[string]int{}
	for i, p := range places {
		if _, seen := at[p]; !seen {
			at[p] = i
		}
	}
	slices.SortStableFunc(r.Entries, func(a, b Entry) int {
		if d := at[a.Where] - at[b.Where]; d != 0 {
			return d
		}
		return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
	})
	r.Verdict = None
	for _, e := range r.Entries {
		r.Verdict = max(r.Verdict, e.Verdict)
	}
}
