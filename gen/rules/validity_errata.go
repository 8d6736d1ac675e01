package rules

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
)

//go:embed postsend_errata.txt
var postSendErrataText string

// ErratumKind tells what an erratum does to its cell.
type ErratumKind string

const (
	Answers  ErratumKind = "answers"  // gives the answer, against the page or where it is silent
	Disputes ErratumKind = "disputed" // keeps the page's answer and says that another source has Answer
	Reads    ErratumKind = "reading"  // keeps the answer and says how the page's words were read
)

// Erratum is one row of the errata table: one cell of the opcode table, or of the rule of a flag.
type Erratum struct {
	A, B   string // queue pair type and opcode; or flag and queue pair type; or flag and opcode
	Kind   ErratumKind
	Answer Answer // not for Reads
	Reason string
	Source string
	At     string // file:line
	used   bool
}

// DefaultPostSendErrata are the rows of postsend_errata.txt.
func DefaultPostSendErrata() ([]*Erratum, error) {
	return ParsePostSendErrata("gen/rules/postsend_errata.txt", postSendErrataText)
}

type erratumLabel struct {
	reason, source, at string
	used               bool
}

// ParsePostSendErrata reads the two kinds of row of an errata table: "= label | reason | source" and "A | B | statement | label".
func ParsePostSendErrata(name, text string) ([]*Erratum, error) {
	var (
		rows   []*Erratum
		errs   []error
		labels = map[string]*erratumLabel{}
		stands = map[string]string{} // cell and whether the row answers it → where
		order  []string
		n      int
	)
	for line := range strings.Lines(text) {
		n++
		at := fmt.Sprintf("%s:%d", name, n)
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		definition, isLabel := strings.CutPrefix(line, "= ")
		cells := strings.Split(definition, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if isLabel {
			if len(cells) != 3 || strings.Contains("|"+strings.Join(cells, "|")+"|", "||") {
				errs = append(errs, fmt.Errorf("%s: want = label | reason | source", at))
				continue
			}
			if old := labels[cells[0]]; old != nil {
				errs = append(errs, fmt.Errorf("%s: label %q stands at %s already", at, cells[0], old.at))
				continue
			}
			labels[cells[0]] = &erratumLabel{reason: cells[1], source: cells[2], at: at}
			order = append(order, cells[0])
			continue
		}
		if len(cells) != 4 {
			errs = append(errs, fmt.Errorf("%s: %d columns; want A | B | statement | label", at, len(cells)))
			continue
		}
		e := &Erratum{A: cells[0], B: cells[1], At: at}
		if err := e.state(cells[2]); err != nil {
			errs = append(errs, err)
			continue
		}
		label := labels[cells[3]]
		if label == nil {
			errs = append(errs, fmt.Errorf("%s: no label %q stands above; add = %s | reason | source", at, cells[3], cells[3]))
			continue
		}
		label.used = true
		e.Reason, e.Source = label.reason, label.source
		key := fmt.Sprintf("%s × %s %t", e.A, e.B, e.Kind == Answers)
		if old := stands[key]; old != "" {
			errs = append(errs, fmt.Errorf("%s: %s × %s stands at %s already", at, e.A, e.B, old))
			continue
		}
		stands[key] = at
		rows = append(rows, e)
	}
	for _, l := range order {
		if !labels[l].used {
			errs = append(errs, fmt.Errorf("%s: no row uses label %q; delete it", labels[l].at, l))
		}
	}
	return rows, errors.Join(errs...)
}

// state reads the third column of a row.
func (e *Erratum) state(statement string) error {
	answer, disputes := strings.CutPrefix(statement, "disputed ")
	e.Kind, e.Answer = Answers, Answer(answer)
	switch {
	case statement == string(Reads):
		e.Kind, e.Answer = Reads, ""
	case e.Answer == Yes || e.Answer == No:
		if disputes {
			e.Kind = Disputes
		}
	case (e.Answer == Elsewhere || e.Answer == Unspecified) && !disputes:
	default:
		return fmt.Errorf("%s: unknown statement %q; want yes, no, elsewhere, unspecified, disputed yes, disputed no or reading", e.At, statement)
	}
	return nil
}

// note is what an erratum that keeps the answer adds to it.
func (e *Erratum) note() string {
	if e.Kind == Disputes {
		return fmt.Sprintf("another source says %s: %s (%s)", e.Answer, e.Reason, e.Source)
	}
	return fmt.Sprintf("%s (%s)", e.Reason, e.Source)
}
