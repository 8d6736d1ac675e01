// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	_ "embed"
	"fmt"
	"go/token"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed exceptions.txt
var exceptionsText string

// Action is the effect of an exception.
type Action string

const (
	Skip     Action = "skip"      // not emitted
	NotFlags Action = "not flags" // an enum written with shifts that is not a set of flags
	Name     Action = "name"      // the Go name, for a nested or untagged type or one whose own name would collide
	Holds    Action = "holds"     // a member declared as a plain integer that holds values of an enum
	Is       Action = "is"        // a member whose type is in gen/emit/internal/support because C has no name for it
	// macros with this prefix are the bits of one set of flags with the Go type in the argument
	Flags Action = "flags"
	// members of several sizes hold the enum: there is a Go type for each size, and the constants are untyped
	Widths Action = "widths"
	// a member that remains an integer although its name is that of an enum; its comment refers to the enum in the
	// argument
	Plain Action = "plain"
	// a value of an enumeration that no header declares, written as TYPE=NUMBER
	Given Action = "given"
	// macros with this prefix are error numbers with the Go type in the argument, which implements error
	Errors Action = "errors"
)

var arguments = map[Action]bool{Skip: false, NotFlags: false, Name: true, Holds: true, Is: true, Flags: true,
	Errors: true, Widths: false, Given: true, Plain: true}

// Exception is one deviation from the general rules.
type Exception struct {
	C        string // C name; members as "ibv_send_wr.wr.rdma"
	Action   Action
	Argument string
	Why      string
	At       string // file:line
}

func exceptionOf(row *rows.Row) *Exception {
	if row == nil {
		return nil
	}
	c := row.Columns
	return &Exception{C: c[0], Action: Action(c[1]), Argument: c[2], Why: c[3], At: row.At}
}

// Exceptions holds all deviations. A row that does not apply to any declaration is an error.
type Exceptions struct{ *rows.File }

// DefaultExceptions returns the rows of exceptions.txt.
func DefaultExceptions() (*Exceptions, error) {
	return ParseExceptions("gen/rules/exceptions.txt", exceptionsText)
}

// ParseExceptions parses rows of the form: C name | action | argument | why.
func ParseExceptions(name, text string) (*Exceptions, error) {
	f := rows.Read(name, text, rows.Form{Want: "C name | action | argument | why", Least: 4, Most: 4, Key: []int{1, 0}})
	for _, row := range f.Rows {
		e := exceptionOf(row)
		wants, known := arguments[e.Action]
		switch {
		case !known:
			f.Fail(e.At, "unknown action %q; want skip, not flags, name, holds, plain, widths, "+
				"given, is, flags or errors", e.Action)
		case e.C == "" || e.Why == "" || wants != (e.Argument != "") && e.Action != Plain:
			f.Fail(e.At, "%s needs a C name and a reason, and an argument only if the action takes one", e.Action)
		case (e.Action == Name || e.Action == Flags || e.Action == Errors) &&
			(!token.IsExported(e.Argument) || !token.IsIdentifier(e.Argument)):
			f.Fail(e.At, "%q is not an exported Go name", e.Argument)
		case e.Action == Given && !isValue(e.Argument):
			f.Fail(e.At, "%q is not a value; want TYPE=NUMBER", e.Argument)
		}
	}
	return &Exceptions{f}, f.Err()
}

// isValue reports whether an argument is an exported Go name and a decimal number: "LinkWidth=2".
func isValue(argument string) bool {
	name, number, _ := strings.Cut(argument, "=")
	_, err := strconv.ParseUint(number, 10, 32)
	return token.IsExported(name) && token.IsIdentifier(name) && err == nil
}

// of returns the rows for a release of a project for another system than Linux: those about enumerations that it does not
// declare are Linux's.
func (x *Exceptions) of(r *model.Release) *Exceptions {
	declared := map[string]bool{}
	for _, row := range x.Rows {
		if prefix, ok := strings.CutPrefix(row.Columns[0], "macros "); ok {
			declared[prefix] = true
		}
	}
	for _, h := range r.Headers {
		for _, e := range h.Enums {
			declared[e.Tag] = true
			declared[e.Enumerators[0].Name] = true
		}
	}
	return &Exceptions{x.Filter(func(row *rows.Row) bool {
		switch e := exceptionOf(row); e.Action {
		case Given:
			return false
		case Holds, Plain:
			return e.Argument == "" || declared[e.Argument]
		}
		return true
	})}
}

// find returns the exception for a C name and marks it as used. It returns nil if there is no such exception.
func (x *Exceptions) find(action Action, c string) *Exception {
	return exceptionOf(x.Find(string(action), c))
}

// group returns the row for a group of macros to which this one belongs and marks it as used. It returns nil if there
// is no such row.
func (x *Exceptions) group(macro string) *Exception {
	for _, row := range x.Rows {
		e := exceptionOf(row)
		prefix, ok := strings.CutPrefix(e.C, "macros ")
		if ok && (e.Action == Flags || e.Action == Errors) && strings.HasPrefix(macro, prefix) {
			return x.find(e.Action, e.C)
		}
	}
	return nil
}

// stale returns errors for the rows that do not apply to any declaration.
func (x *Exceptions) stale() []error {
	var errs []error
	for _, row := range x.Stale() {
		e := exceptionOf(row)
		errs = append(errs, fmt.Errorf("%s: stale exception: %s %s does not apply to any declaration; delete the row",
			e.At, e.Action, e.C))
	}
	return errs
}
