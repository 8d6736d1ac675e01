// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"slices"
	"strings"
)

// # Grids
//
// A grid is a table of validity, or of causes and effects: a question, one or more dimensions, and a cell for every
// combination of their items. Each file of gen/rules/tables is one grid. gen/emit prints it as a Go file
// table_<name>.go, whose lookup does not allocate, and as text, JSON and HTML. To add a table, add a file. If a man
// page has the table, also add a function to gridBases that fills in the page's cells. packages.go lists the packages
// that have grids.
//
// A file has directives, labels and rows, one per line, with columns separated by |. A line that starts with # is a
// comment.
//
//	@ package  ibv                                   the generated package of the table
//	@ part     send_flags                            instead of @ func: a part of other tables, not printed alone
//	@ first    SRQPost                               the lookup of a table without the last dimension: see First
//	@ question What may …?                           the question that the table answers
//	@ page     ibv_modify_qp.3                       man pages, separated by commas
//	@ func     SRQPost | reports whether …            Go name of the lookup | its comment after the name
//	@ result   SRQRule | is …                        Go name of the result type, if there are values | its comment
//	                                                 (without values, the result type is Validity)
//	@ dim      qpt | queue pair type | enum ibv_qp_type | without IBV_QPT_DRIVER
//	@ dim      flag | send flag | flag ibv_send_flags                exactly one flag of a set
//	@ dim      path | path | list BindPath                           a @ list of this file or another
//	@ list     BindPath | is …                       Go name of an enumeration of the table's own | its comment
//	@ set      WRSetters | is …                      the same for flags
//	@ item     BindPathPost | ibv_wr_bind_mw | …     an item of the @ list or @ set above: Go name | text | comment.
//	                                                 A lookup returns the first item of a list if a value has no answer,
//	                                                 so the item should express that. Dimensions leave it out
//	@ value    Required | mask ibv_qp_attr_mask | …  Go name | kind and type | comment. Kinds: mask TAG, one TAG,
//	                                                 list TAG, number, text. TAG is a C enum, or a @ list or @ set
//	@ all      ModifyQPMask | returns …              another lookup, of all values and whether the answer is yes
//	@ items    SRQTypes | path | are …               another lookup, by the other dimensions: items with a yes
//	@ check    CheckAccess | Needs | Always | checks …  another lookup, of several flags at once: see FlagCheck
//	@ reads    SRC SEND | XRC_SEND | label           corrects a word of the page; "nothing" drops it
//	= label | reason | source | condition            a reason for rows; the condition, if given, must hold for a yes
//	A, B | C | D | statement | value … | label       a row: items of each dimension, then all values or none
//
// Enumerators have their C names, items of a @ list or @ set their Go names or texts. A row applies to every
// combination of its items. There is no wildcard, so that no row applies to an enumerator of a later release by
// accident. A cell without an answer from a row or page is unspecified. Statements:
//
//	yes, no, capability, elsewhere, unspecified   the answer ("capability": requires the one that the condition names;
//	                                              "elsewhere": not with the function that the table describes)
//	agrees                  keeps the page's answer and values, and adds values that the page lacks;
//	                        values that the page has must be equal
//	disputed yes, …         another source has this answer or these values; both are kept
//	reading                 keeps everything, and notes how the page was interpreted
//
// Values are names separated by commas, or none for an empty mask or list. An empty column states nothing. A cell with
// the answer yes or capability must have every value. Unknown names, cells that are stated twice, and rows, labels and
// corrections without effect are errors with file and line.
type Grid struct {
	Name     string // "qp_transitions", from the file's name
	Package  string
	Release  string
	Question string
	Pages    []string
	StandIns map[string]string // pages that come from another release; see model.Release
	Func     string            // Go name of the lookup
	FuncDoc  string
	Result   string // Go type that the lookup returns; "Validity" for a table without values
	Doc      string // comment of Result
	All      Lookup
	Items    []Lookup
	Check    FlagCheck
	Part     []string // the tables of which this one is a part; it is not printed itself
	// First is the lookup of a grid with all dimensions but the last. Unless its answer is yes, it also applies to an
	// unknown last item.
	First          string
	FirstHasValues bool
	Dims           []Dim
	Values         []ValueDef
	Types          []*GridType // enumerations declared in the file
	Own            []*GridType // enumerations used in the file, from any file
	Cells          []Cell      // for every combination; the last dimension varies fastest
	Cited          string      // sources of a measured table, which has no pages

	stated map[*Cell]string // cell → file:line of its row
	shown  map[*Cell]bool   // of a part: cells that appear in a table
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

// GridType is an enumeration or a set of flags that a table defines.
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
	names   []string // the names that Mask, One and List may contain
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

// Cell is the answer of a grid for one combination. Values are in the order of the grid's ValueDefs; a nil value is not
// set.
type Cell struct {
	Validity
	Values []Value
}

// Value holds the names of a Mask, One or List, or the single word of a Number or Text. An empty mask or list is not
// nil.
type Value []string

func (v Value) String() string {
	if v != nil && len(v) == 0 {
		return "none"
	}
	return strings.Join(v, ", ")
}

// Size returns the number of cells.
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

// Combination returns the names of the items of the nth cell.
func (g *Grid) Combination(n int) []string {
	names := make([]string, len(g.Dims))
	for i := len(g.Dims) - 1; i >= 0; i-- {
		size := len(g.Dims[i].Names)
		names[i] = g.Dims[i].Names[n%size]
		n /= size
	}
	return names
}

// Silent returns the combinations that neither a row nor a page answers.
func (g *Grid) Silent() [][]string {
	var all [][]string
	for i := range g.Cells {
		if g.Cells[i].Silent() {
			all = append(all, g.Combination(i))
		}
	}
	return all
}

const noSource = "not specified by any source"

// Silent reports whether no row answers the cell.
func (v Validity) Silent() bool { return v.Reason == noSource }

// Source returns the citation of the man pages, or of the measurements.
func (g *Grid) Source() string {
	return g.cite(g.Pages[:min(1, len(g.Pages))])
}

// Sources returns the citation of all pages.
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

// cite returns the citation of pages of a release.
func (g *Grid) cite(pages []string) string {
	release := g.Release
	if len(pages) > 0 && g.StandIns[pages[0]] != "" {
		release = g.StandIns[pages[0]]
	}
	return strings.Join(append(slices.Clone(pages), "rdma-core "+release), ", ")
}
