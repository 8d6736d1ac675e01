package diff

import (
	_ "embed"
	"fmt"
	"path"
	"strings"
)

//go:embed judgements.txt
var judgementsText string

// row is one line of judgements.txt.
type row struct {
	action, subject, argument, why string
	at                             string // file:line
	fired                          bool
}

// Judgements are what C cannot tell.
type Judgements struct{ rows []*row }

// actions tells whether an action takes an argument.
var actions = map[string]bool{
	"count": false, "size": false, "plain": false, "reserved": false, "guard": false,
	"handed": false, "guarded": false, "single": false, "verdict": true,
}

// DefaultJudgements are the rows of judgements.txt.
func DefaultJudgements() (*Judgements, error) {
	return ParseJudgements("gen/diff/judgements.txt", judgementsText)
}

// ParseJudgements reads rows of the form: action | subject | argument | why.
func ParseJudgements(name, text string) (*Judgements, error) {
	j := &Judgements{}
	seen := map[string]string{}
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
			return nil, fmt.Errorf("%s: %d columns; want action | subject | argument | why", at, len(cells))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		r := &row{action: cells[0], subject: cells[1], argument: cells[2], why: cells[3], at: at}
		takes, known := actions[r.action]
		switch {
		case !known:
			return nil, fmt.Errorf("%s: unknown action %q", at, r.action)
		case r.subject == "" || r.why == "" || takes != (r.argument != ""):
			return nil, fmt.Errorf("%s: %s needs a subject and a reason, and an argument only where the action takes one", at, r.action)
		}
		if _, err := path.Match(r.subject, ""); err != nil {
			return nil, fmt.Errorf("%s: pattern %q: %w", at, r.subject, err)
		}
		if r.action == "verdict" && verdictOf(r.argument) < 0 {
			return nil, fmt.Errorf("%s: %q is no verdict; want none, additive or breaking", at, r.argument)
		}
		key := r.action + " " + r.subject
		if old := seen[key]; old != "" {
			return nil, fmt.Errorf("%s: %s stands at %s already", at, key, old)
		}
		seen[key] = at
		j.rows = append(j.rows, r)
	}
	return j, nil
}

func verdictOf(name string) Verdict {
	for i, n := range verdictNames {
		if n == name {
			return Verdict(i)
		}
	}
	return -1
}

// word tells what an integer beside a pointer is: "count", "size", "plain", or "" when no row says.
func (j *Judgements) word(name string) string {
	for _, r := range j.rows {
		if r.action == "count" || r.action == "size" || r.action == "plain" {
			if ok, _ := path.Match(r.subject, name); ok {
				r.fired = true
				return r.action
			}
		}
	}
	return ""
}

// matches reports whether a pattern row of the action matches a name.
func (j *Judgements) matches(action, name string) bool {
	for _, r := range j.rows {
		if r.action == action {
			if ok, _ := path.Match(r.subject, name); ok {
				r.fired = true
				return true
			}
		}
	}
	return false
}

// find gives the row for exactly this subject, or nil. The caller marks it as fired once it makes a difference.
func (j *Judgements) find(action, subject string) *row {
	for _, r := range j.rows {
		if r.action == action && r.subject == subject {
			return r
		}
	}
	return nil
}

// reserved reports whether the last name of a C path, or a Go name made from one, stands for bytes without a meaning.
func (j *Judgements) reserved(name string) bool {
	name = strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
	return j.matches("reserved", name)
}

// Stale lists the rows that have made no difference so far.
func (j *Judgements) Stale() []string {
	var all []string
	for _, r := range j.rows {
		if !r.fired {
			all = append(all, fmt.Sprintf("%s: stale row: %s %s makes no difference; delete it", r.at, r.action, r.subject))
		}
	}
	return all
}
