// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	_ "embed"
	"slices"

	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed measured.txt
var disagreementRows string

const disagreementsFile = "gen/rules/measured.txt"

// Disagreement is a row of gen/rules/measured.txt: the reason why a measured answer differs from the documentation.
type Disagreement struct {
	Table     string
	Cells     [][]string // measurements, queue pair types, opcodes and, in tables that have them, send flags
	Statement string     // works or fails
	Reason    string
	Source    string
	At        string
}

// DefaultDisagreements returns the rows of gen/rules/measured.txt.
func DefaultDisagreements() ([]*Disagreement, error) {
	return ParseDisagreements(disagreementsFile, disagreementRows)
}

// ParseDisagreements parses rows in the format described in gen/rules/measured.txt. Their names are checked later.
func ParseDisagreements(name, text string) ([]*Disagreement, error) {
	f := rows.Read(name, text, rows.Form{
		Want: "table | measurements | queue pair types | opcodes | works or fails | label; " +
			"with send flags after the opcodes in a table that has them",
		Least: 6, Most: 7, Labels: "label | reason | source",
	})
	var all []*Disagreement
	for _, row := range f.Rows {
		c := row.Columns
		n := len(c) - 2
		switch {
		case slices.Contains(c, ""):
			f.Fail(row.At, "a column is empty")
			continue
		case c[n] != "works" && c[n] != "fails":
			f.Fail(row.At, "unknown statement %q; want works or fails", c[n])
			continue
		}
		why := f.Use(c[n+1], row)
		d := &Disagreement{Table: c[0], Statement: c[n], Reason: why.Reason, Source: why.Source, At: row.At}
		for _, list := range c[1:n] {
			d.Cells = append(d.Cells, rows.List(list))
		}
		all = append(all, d)
	}
	return all, f.Err()
}
