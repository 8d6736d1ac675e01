// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	_ "embed"
	"errors"
	"fmt"
	"go/token"
	"strings"

	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed conventions.txt
var conventionsText string

//go:embed routing.txt
var routingText string

//go:embed verbs.txt
var verbsText string

// VerbRows holds facts about functions that headers do not contain: the rows of conventions.txt, routing.txt and
// verbs.txt. A row without effect, or for a function that no recorded release has, is an error.
type VerbRows struct{ conventions, routing, verbs *rows.File }

// DefaultVerbRows returns the rows of this directory.
func DefaultVerbRows() (*VerbRows, error) {
	return ParseVerbRows(conventionsText, routingText, verbsText)
}

// ParseVerbRows reads the three files: NAME KIND SOURCE, NAME none|arg N|event, ACTION NAME ARGUMENT WHY.
func ParseVerbRows(conventions, routing, verbs string) (*VerbRows, error) {
	words := func(name, text, want string, least int, key ...int) *rows.File {
		return rows.Read("gen/rules/"+name, text, rows.Form{Want: want, Least: least, Words: true, Key: key})
	}
	v := &VerbRows{
		conventions: words("conventions.txt", conventions, "NAME KIND SOURCE", 2, 0),
		routing:     words("routing.txt", routing, "NAME WHAT REASON", 2, 0),
		verbs:       words("verbs.txt", verbs, "ACTION NAME ARGUMENT WHY", 4, 0, 1),
	}
	for _, row := range v.verbs.Rows {
		if name := row.Columns[2]; row.Columns[0] == "name" && (!token.IsExported(name) || !token.IsIdentifier(name)) {
			v.verbs.Fail(row.At, "%q is not an exported Go name", name)
		}
	}
	return v, errors.Join(v.conventions.Err(), v.routing.Err(), v.verbs.Err())
}

// staleVerbs returns errors for the rows without effect: those for a function of this package that did not fire, and
// those for a function that no release has. function is the column of the function's name.
func staleVerbs(f *rows.File, function int, here, anywhere func(name string) bool) []error {
	var errs []error
	for _, row := range f.Rows {
		name, _, _ := strings.Cut(row.Columns[function], ".")
		if !row.Fired && here(name) || !anywhere(name) {
			errs = append(errs, fmt.Errorf("%s: stale row: %s has no effect; delete the row", row.At, row.Rest(0)))
		}
	}
	return errs
}
