// SPDX-License-Identifier: BSD-2-Clause

package rules

// Answer is the answer of a table's cell.
type Answer string

const (
	Yes         Answer = "yes"
	No          Answer = "no"
	Elsewhere   Answer = "elsewhere"   // posted with another function than the one that the table describes
	Unspecified Answer = "unspecified" // not specified by any source
	Capability  Answer = "capability"  // yes if the device has the capability that Condition names
)

// Validity is a cell with all its facts.
type Validity struct {
	Answer    Answer
	Condition string // for Yes and Capability: a further condition
	Reason    string
	Source    string
	Note      string // the answer of another source, or how the page was interpreted
}

func joinNotes(notes ...string) string {
	all := ""
	for _, note := range notes {
		if all != "" && note != "" {
			all += "; "
		}
		all += note
	}
	return all
}
