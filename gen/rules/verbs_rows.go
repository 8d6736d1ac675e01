package rules

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed conventions.txt
var conventionsText string

//go:embed routing.txt
var routingText string

//go:embed verbs.txt
var verbsText string

// VerbRows are what headers do not say about their functions: the rows of conventions.txt, routing.txt and verbs.txt. A row
// for a function that no recorded release has, or that has no effect, is an error.
type VerbRows struct {
	conventions *rowFile
	routing     *rowFile
	verbs       *rowFile
}

// DefaultVerbRows are the rows of this directory.
func DefaultVerbRows() (*VerbRows, error) {
	return ParseVerbRows(conventionsText, routingText, verbsText)
}

// ParseVerbRows reads the three files: NAME KIND SOURCE, NAME none|arg N|event, ACTION NAME ARGUMENT WHY.
func ParseVerbRows(conventions, routing, verbs string) (*VerbRows, error) {
	c, err := parseRows("gen/rules/conventions.txt", conventions, 1, 2)
	if err != nil {
		return nil, err
	}
	to, err := parseRows("gen/rules/routing.txt", routing, 1, 2)
	if err != nil {
		return nil, err
	}
	v, err := parseRows("gen/rules/verbs.txt", verbs, 2, 4)
	if err != nil {
		return nil, err
	}
	return &VerbRows{conventions: c, routing: to, verbs: v}, nil
}

// rowFile is a file of rows of words. The first words are the row's key.
type rowFile struct {
	rows []*wordRow
	by   map[string]*wordRow
}

type wordRow struct {
	words []string
	at    string // file:line
	fired bool
}

// rest are the words behind the key and n more, as text.
func (w *wordRow) rest(n int) string { return strings.Join(w.words[n:], " ") }

func parseRows(name, text string, key, least int) (*rowFile, error) {
	f := &rowFile{by: map[string]*wordRow{}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		at := fmt.Sprintf("%s:%d", name, n)
		if len(words) < least {
			return nil, fmt.Errorf("%s: %d words; a row has at least %d", at, len(words), least)
		}
		k := strings.Join(words[:key], " ")
		if old := f.by[k]; old != nil {
			return nil, fmt.Errorf("%s: %s stands at %s already", at, k, old.at)
		}
		f.by[k] = &wordRow{words: words, at: at}
		f.rows = append(f.rows, f.by[k])
	}
	return f, nil
}

// find gives the row with a key and marks it as used, or nil.
func (f *rowFile) find(key string) *wordRow {
	row := f.by[key]
	if row != nil {
		row.fired = true
	}
	return row
}

// stale are the rows without effect: of a function of this package that did not fire, or of one that no release has. function
// is the place of the function's name among a row's words.
func (f *rowFile) stale(function int, here, anywhere func(name string) bool) []error {
	var errs []error
	for _, row := range f.rows {
		name, _, _ := strings.Cut(row.words[function], ".")
		if !row.fired && here(name) || !anywhere(name) {
			errs = append(errs, fmt.Errorf("%s: stale row: %s has no effect; delete the row", row.at, row.rest(0)))
		}
	}
	return errs
}
