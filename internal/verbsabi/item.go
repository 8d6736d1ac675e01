// SPDX-License-Identifier: BSD-2-Clause

// Package verbsabi compares the generated Go packages with installed headers and libraries, for the commands verbsabi
// and goverbs abi. CWitness compiles assertions generated from a model against the real headers, GoWitness compiles the
// assertions in a generated package, and Measure returns sizes and offsets of the Go types. Compare lists the
// differences between installed headers and those that the Go packages were generated from. Types in the DWARF of
// libraries and the BTF of kernels are converted to a model and compared in the same way. Run combines all of these.
package verbsabi

import (
	"fmt"
	"strings"
)

// Kind is the kind of an Item.
type Kind string

const (
	RecordItem     Kind = "record"     // size and alignment of a structure, a union or an opaque type
	FieldItem      Kind = "field"      // a named member, through unnamed and nested structures and unions
	EnumItem       Kind = "enum"       // size, signedness and completeness of an enumeration
	EnumeratorItem Kind = "enumerator" // value of an enumerator
	ConstantItem   Kind = "constant"   // value and type of a macro
	AliasItem      Kind = "alias"      // a macro that is another name for a tag, an enumerator or a function
	MacroItem      Kind = "macro"      // existence of a macro that takes parameters
	FuncItem       Kind = "function"   // type of a function
)

// Item is one fact about a declaration.
type Item struct {
	Kind Kind `json:"kind"`
	// Name is the name of the declaration, without struct, union or enum: "ibv_send_wr"; "-" for an untagged enum.
	Name string `json:"name"`
	Path string `json:"path,omitempty"` // of the field ("wr.rdma.rkey"), or name of the enumerator
	Fact string `json:"fact"`           // "size", "alignment", "offset", "type", "value", …
	Want string `json:"want"`           // value in the model
}

// String returns "ibv_send_wr,wr.rdma.rkey,offset", the spelling that verbsabi -dump also uses.
func (i Item) String() string { return strings.Join([]string{i.Name, i.Path, i.Fact}, ",") }

// Mismatch is an Item that the C compiler rejects.
type Mismatch struct {
	Item
	Found   string `json:"found,omitempty"` // empty if the compiler does not print it
	Message string `json:"message"`         // the compiler's message
}

// String returns "ibv_send_wr,wr.rdma.rkey,offset: want 48, found 44".
func (m Mismatch) String() string {
	if m.Found == "" {
		return fmt.Sprintf("%s: want %s; the C compiler reports: %s", m.Item, m.Want, m.Message)
	}
	return fmt.Sprintf("%s: want %s, found %s", m.Item, m.Want, m.Found)
}

// Counts holds the numbers of checked declarations, independent of the number of facts about each.
type Counts struct {
	Structs     int `json:"structs"` // structures, unions and opaque types, named nested ones too
	Fields      int `json:"fields"`
	Enumerators int `json:"enumerators"`
	Constants   int `json:"constants"` // macros with a value, and aliases
	Prototypes  int `json:"prototypes"`
}

// String returns "118 structs, 812 fields, …".
func (c Counts) String() string {
	return fmt.Sprintf("%4d structs, %4d fields, %4d enumerators, %3d constants, %3d prototypes",
		c.Structs, c.Fields, c.Enumerators, c.Constants, c.Prototypes)
}

// Report is the result of the C witness for one release on one target.
type Report struct {
	Project    string     `json:"project"`
	Release    string     `json:"release"`
	Target     string     `json:"target"` // GOARCH
	Counts     Counts     `json:"counts"`
	Facts      int        `json:"facts"` // assertions that were compiled
	Mismatches []Mismatch `json:"mismatches"`
}

// String returns the report on one line.
func (r *Report) String() string { return r.line(len(r.Mismatches)) }

func (r *Report) line(mismatches int) string {
	return fmt.Sprintf("%-15s %-8s %s, %d mismatches", r.Project+" "+r.Release, r.Target, r.Counts, mismatches)
}
