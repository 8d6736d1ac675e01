// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"slices"
	"strings"
)

// # Grids
//
// A grid is a table of validity, or of causes and effects: a question, one or more dimensions, and a cell
// for every combination of their items. Every file of gen/rules/tables is one grid; gen/emit prints it as a Go file
// table_<name>.go with a lookup that does not allocate, and as text, JSON and HTML. A new table is a new file there
// and nothing else, unless a man page is read for it: then a function of gridBases gives the cells that the page
// states. (packages.go lists the packages that have grids.)
//
// A file has directives, labels and rows, each on a line of its own; | separates, # starts a comment line.
//
//	@ package  ibv                                   the generated package that it is part of
//	@ part     send_flags                            instead of @ func: a part of other tables, not printed alone
//	@ first    SRQPost                               the lookup of a table without the last dimension: see First
//	@ question What may …?                           one line for people
//	@ page     ibv_modify_qp.3                       man pages, separated by commas
//	@ func     SRQPost | reports whether …            Go name of the lookup | its comment after the name
//	@ result   SRQRule | is …                        Go name of what it returns, if it has values | its comment
//	                                                 (without values it returns Validity)
//	@ dim      qpt | queue pair type | enum ibv_qp_type | without IBV_QPT_DRIVER
//	@ dim      flag | send flag | flag ibv_send_flags                exactly one flag of a set
//	@ dim      path | path | list BindPath                           a list of a @ list, of this file or another
//	@ list     BindPath | is …                       Go name of an enumeration of the table's own | its comment
//	@ set      WRSetters | is …                      the same of flags
//	@ item     BindPathPost | ibv_wr_bind_mw | …     an item of the @ list or @ set above: Go name | text | comment
//	                                                 A list as a value: where it has no answer, lookups give its
//	                                                 first item, so let it say so; dimensions go without it
//	@ value    Required | mask ibv_qp_attr_mask | …  Go name | kind and type | comment. Kinds: mask TAG, one TAG,
//	                                                 list TAG, number, text. TAG is a C enum, or a @ list or @ set
//	@ all      ModifyQPMask | gives …                a second lookup, of all values and whether the answer is yes
//	@ items    SRQTypes | path | are …               a second lookup, by the others: items with the answer yes
//	@ check    CheckAccess | Needs | Always | says …  a further lookup, of several flags at once: see FlagCheck
//	@ reads    SRC SEND | XRC_SEND | label           corrects a word of the page before it is read; "nothing" drops it
//	= label | reason | source | condition            why; the condition, if there is one, must hold as well for a yes
//	A, B | C | D | statement | value … | label       a row: items of each dimension, then each value, or none
//
// Enumerators stand under their C names, items of a @ list or @ set under their Go names or as they print.
// A row speaks of each combination of the items that it names. There is no wildcard: what is not named is not meant,
// so that an enumerator of a later release is never answered by accident; a cell that nothing speaks of is
// unspecified, "no source says". Statements:
//
//	yes, no, capability, elsewhere, unspecified   the answer ("capability": needs one, which the condition names;
//	                                              "elsewhere": not with the function that the table is about)
//	agrees                  keeps the page's answer and values, and gives the values that the page lacks;
//	                        what it repeats must be equal
//	disputed yes, …         another source answers so, or has these values; both are kept
//	reading                 keeps everything and notes how the page was read
//
// Values: names separated by commas; none for an empty mask or list; an empty column states nothing. A cell that is yes
// or needs a capability must have every value in the end. Errors: an unknown name, a cell stated twice, a row or
// label or correction without effect; all with file and line.
type Grid struct {
	Name     string // "qp_transitions", from the file's name
	Package  string
	Release  string
	Question string
	Pages    []string
	StandIns map[string]string // pages of other releases that were read instead, see model.Release
	Func     string            // Go name of the lookup
	FuncDoc  string
	Result   string // Go type of what the lookup returns; "Validity" for a table without values
	Doc      string // of Result
	All      Lookup
	Items    []Lookup
	Check    FlagCheck
	Part     []string // the tables that this one is a part of; it is not printed
	// First is the lookup of a grid with all dimensions but the last: where its answer is not yes, it stands for an
	// unknown last item.
	First          string
	FirstHasValues bool
	Dims           []Dim
	Values         []ValueDef
	Types          []*GridType // enumerations that the file declares
	Own            []*GridType // those that it uses, of whichever file
	Cells          []Cell      // of every combination; the last dimension runs fastest
	Cited          string      // sources of a table that was measured, not read from pages

	stated map[*Cell]string // of cells that rows speak of: where
	shown  map[*Cell]bool   // of a part: cells that a table shows
}

// Lookup is an additional function of a grid.
type Lookup struct {
	Func, Doc string
	Dim       int
}

// Dim is a dimension of a grid.
type Dim struct {
	Param string // Go name of the parameter
	What  string // "queue pair type"
	Type  string // "enum ibv_qp_type", or a GridType's name
	Flags bool   // each item is one flag of a set
	Part  bool   // not all enumerators of the enum
	Names []string
}

// GridType is an enumeration, or a set of flags, of a table's own.
type GridType struct {
	Name, Doc string
	Set       bool
	Items     []GridItem
}

// GridItem is a constant of a GridType.
type GridItem struct{ Go, Prints, Doc string }

// ValueDef is a value of the cells, in addition to the answer.
type ValueDef struct {
	Go, Doc string
	Kind    ValueKind
	Type    string   // "enum ibv_qp_attr_mask", or a GridType's name
	names   []string // what Mask, One and List choose from
}

// ValueKind is the type of a value.
type ValueKind string

const (
	Mask   ValueKind = "mask"   // a set of flags
	One    ValueKind = "one"    // one enumerator
	List   ValueKind = "list"   // some enumerators, in the order of the row
	Number ValueKind = "number" // a decimal number
	Text   ValueKind = "text"
)

// Cell is the answer of a grid for one combination. Values are in the order of the grid's; a nil one is not stated.
type Cell struct {
	Validity
	Values []Value
}

// Value is the names of a Mask, One or List, or the one word of a Number or Text. An empty mask or list is not nil.
type Value []string

func (v Value) String() string {
	if v != nil && len(v) == 0 {
		return "none"
	}
	return strings.Join(v, ", ")
}

// Size is the number of cells.
func (g *Grid) Size() int {
	n := 1
	for _, d := range g.Dims {
		n *= len(d.Names)
	}
	return n
}

// At returns the cell of a combination, or nil.
func (g *Grid) At(names ...string) *Cell {
	n := 0
	for i, d := range g.Dims {
		at := -1
		if i < len(names) {
			at = slices.Index(d.Names, names[i])
		}
		if at < 0 {
			return nil
		}
		n = n*len(d.Names) + at
	}
	return &g.Cells[n]
}

// Combination names the items of the nth cell.
func (g *Grid) Combination(n int) []string {
	names := make([]string, len(g.Dims))
	for i := len(g.Dims) - 1; i >= 0; i-- {
		size := len(g.Dims[i].Names)
		names[i] = g.Dims[i].Names[n%size]
		n /= size
	}
	return names
}

// Silent lists the combinations that no row answers.
func (g *Grid) Silent() [][]string {
	var all [][]string
	for i := range g.Cells {
		if g.Cells[i].Silent() {
			all = append(all, g.Combination(i))
		}
	}
	return all
}

const noSource = "no source says"

// Silent reports whether no row answers the cell.
func (v Validity) Silent() bool { return v.Reason == noSource }

// Source returns the citation of the man page.
func (g *Grid) Source() string {
	return g.cite(g.Pages[:min(1, len(g.Pages))])
}

// Sources cites all pages.
func (g *Grid) Sources() string {
	if g.Cited != "" {
		return g.Cited
	}
	of := func(page string) string { return g.StandIns[page] }
	if len(g.Pages) == 0 || !slices.ContainsFunc(g.Pages, func(p string) bool { return of(p) != of(g.Pages[0]) }) {
		return g.cite(g.Pages)
	}
	var all []string
	for i := range g.Pages {
		all = append(all, g.cite(g.Pages[i:i+1]))
	}
	return strings.Join(all, "; ")
}

// cite names pages of a release.
func (g *Grid) cite(pages []string) string {
	release := g.Release
	if len(pages) > 0 && g.StandIns[pages[0]] != "" {
		release = g.StandIns[pages[0]]
	}
	return strings.Join(append(slices.Clone(pages), "rdma-core "+release), ", ")
}
