// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed judgements.txt
var judgementsText string

// Judgements holds verdicts that cannot be derived from C declarations.
type Judgements struct{ *rows.File }

// actions maps each action to whether it takes an argument.
var actions = map[string]bool{
	"count": false, "size": false, "plain": false, "reserved": false, "guard": false,
	"returned": false, "guarded": false, "single": false, "private": false, "verdict": true,
}

// DefaultJudgements returns the rows of judgements.txt.
func DefaultJudgements() (*Judgements, error) {
	return ParseJudgements("gen/diff/judgements.txt", judgementsText)
}

// NoJudgements returns Judgements without rows.
func NoJudgements() *Judgements { return &Judgements{&rows.File{}} }

// ParseJudgements parses rows of the form: action | subject | argument | why.
func ParseJudgements(name, text string) (*Judgements, error) {
	f := rows.Read(name, text,
		rows.Form{Want: "action | subject | argument | why", Least: 4, Most: 4, Key: []int{0, 1}})
	for _, row := range f.Rows {
		action, subject, argument := row.Columns[0], row.Columns[1], row.Columns[2]
		takes, known := actions[action]
		_, err := path.Match(subject, "")
		switch {
		case !known:
			f.Fail(row.At, "unknown action %q", action)
		case subject == "" || row.Columns[3] == "" || takes != (argument != ""):
			f.Fail(row.At, "%s needs a subject and a reason, and an argument only if the action takes one", action)
		case err != nil:
			f.Fail(row.At, "pattern %q: %w", subject, err)
		case action == "verdict" && verdictOf(argument) < 0:
			f.Fail(row.At, "%q is not a verdict; want none, additive or breaking", argument)
		}
	}
	return &Judgements{f}, f.Err()
}

func verdictOf(name string) Verdict {
	for i, n := range verdictNames {
		if n == name {
			return Verdict(i)
		}
	}
	return -1
}

// word returns the meaning of an integer next to a pointer: "count", "size", "plain", or "" without a row.
func (j *Judgements) word(name string) string { return j.match(name, "count", "size", "plain") }

// matches reports whether a row with this action has a pattern that matches a name.
func (j *Judgements) matches(action, name string) bool { return j.match(name, action) != "" }

// match returns the action of the first row with one of these actions and a pattern that matches a name, or "".
func (j *Judgements) match(name string, actions ...string) string {
	for _, row := range j.Rows {
		if ok, _ := path.Match(row.Columns[1], name); ok && slices.Contains(actions, row.Columns[0]) {
			row.Fired = true
			return row.Columns[0]
		}
	}
	return ""
}

// reserved reports whether the last name of a C path, or a Go name derived from one, names a reserved member.
func (j *Judgements) reserved(name string) bool {
	name = strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
	return j.matches("reserved", name)
}

// Unused lists the rows without effect.
func (j *Judgements) Unused() []string {
	var all []string
	for _, row := range j.Stale() {
		all = append(all, fmt.Sprintf("%s: stale row: %s %s makes no difference; delete it", row.At, row.Columns[0],
			row.Columns[1]))
	}
	return all
}
