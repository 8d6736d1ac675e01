package rules

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed exceptions.txt
var exceptionsText string

// Action is what an exception does.
type Action string

const (
	Skip     Action = "skip"      // not emitted
	NotFlags Action = "not flags" // an enum that is written with shifts but is no set of flags
	Name     Action = "name"      // the Go name, for a nested or untagged type or one whose own name would collide
	Holds    Action = "holds"     // a member declared as a plain integer that holds values of an enum
)

var arguments = map[Action]bool{Skip: false, NotFlags: false, Name: true, Holds: true}

// Exception is one deviation from the general rules.
type Exception struct {
	C        string // C name; members as "ibv_send_wr.wr.rdma"
	Action   Action
	Argument string
	Why      string
	At       string // file:line
	fired    bool
}

// Exceptions is the table of all deviations. A row that no longer fires is an error.
type Exceptions struct {
	rows []*Exception
	by   map[string]*Exception
}

// DefaultExceptions are the rows of exceptions.txt.
func DefaultExceptions() (*Exceptions, error) {
	return ParseExceptions("gen/rules/exceptions.txt", exceptionsText)
}

// ParseExceptions reads rows of the form: C name | action | argument | why.
func ParseExceptions(name, text string) (*Exceptions, error) {
	all := &Exceptions{by: map[string]*Exception{}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := fmt.Sprintf("%s:%d", name, n)
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			return nil, fmt.Errorf("%s: %d columns; want C name | action | argument | why", at, len(cells))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		e := &Exception{C: cells[0], Action: Action(cells[1]), Argument: cells[2], Why: cells[3], At: at}
		wants, known := arguments[e.Action]
		switch {
		case !known:
			return nil, fmt.Errorf("%s: unknown action %q; want skip, not flags, name or holds", at, e.Action)
		case e.C == "" || e.Why == "" || wants != (e.Argument != ""):
			return nil, fmt.Errorf("%s: %s needs a C name and a reason, and an argument only where the action takes one", at, e.Action)
		}
		key := string(e.Action) + " " + e.C
		if old := all.by[key]; old != nil {
			return nil, fmt.Errorf("%s: %s %s stands at %s already", at, e.Action, e.C, old.At)
		}
		all.by[key] = e
		all.rows = append(all.rows, e)
	}
	return all, nil
}

// find gives the exception for a C name and marks it as used, or nil.
func (x *Exceptions) find(action Action, c string) *Exception {
	e := x.by[string(action)+" "+c]
	if e != nil {
		e.fired = true
	}
	return e
}

// stale lists the rows that did not fire.
func (x *Exceptions) stale() []error {
	var errs []error
	for _, e := range x.rows {
		if !e.fired {
			errs = append(errs, fmt.Errorf("%s: stale exception: %s %s does not apply to any declaration; delete the row", e.At, e.Action, e.C))
		}
	}
	return errs
}
