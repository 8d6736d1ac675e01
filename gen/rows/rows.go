// SPDX-License-Identifier: BSD-2-Clause

// Package rows parses the row files that configure the generator. Each row is a line, with columns separated by | or
// blanks. A line that starts with # is a comment, one that starts with @ a directive, and one that starts with = a
// label: a reason and its source, to which rows refer by name. Errors name the file and the line.
package rows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Form describes the rows of a file.
type Form struct {
	Want        string // the columns, for errors: "C name | action | argument | why"
	Least, Most int    // limits for the number of columns; a Most of 0 means no limit
	Words       bool   // columns are separated by blanks, not by |
	Each        bool   // every word is a row, whose columns are separated by =
	Key         []int  // columns that must be unique together, in the order in which errors print them
	Directives  bool   // lines may start with @
	// columns of a label, for errors: "label | reason | source"; "" for a file without labels
	Labels     string
	MoreLabels int // optional additional columns of a label
}

// File is a parsed file.
type File struct {
	Name string
	Rows []*Row // including directives, in the order of the file

	form   Form
	by     map[string]*Row
	labels []*Label
	errs   []error
}

// Row is one row or directive.
type Row struct {
	Columns   []string
	Directive bool
	At        string // file:line
	Fired     bool   // the row had an effect
}

// Label is a reason that several rows share.
type Label struct {
	Name, Reason, Source string
	More                 string // the additional column, or ""
	At                   string
	used                 bool
}

// Read parses a file. Err returns its errors, together with those added by Fail.
func Read(name, text string, form Form) *File {
	f := &File{Name: name, form: form, by: map[string]*Row{}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		at := fmt.Sprintf("%s:%d", name, n)
		line = strings.TrimSpace(line)
		directive, isDirective := strings.CutPrefix(line, "@ ")
		label, isLabel := strings.CutPrefix(line, "= ")
		switch {
		case line == "" || line[0] == '#':
		case isDirective && form.Directives:
			f.Rows = append(f.Rows, &Row{Columns: []string{strings.TrimSpace(directive)}, Directive: true, At: at})
		case isLabel && form.Labels != "":
			f.label(at, Columns(label))
		case form.Each:
			for _, word := range strings.Fields(line) {
				f.row(at, strings.Split(word, "="))
			}
		case form.Words:
			f.row(at, strings.Fields(line))
		default:
			f.row(at, Columns(line))
		}
	}
	return f
}

// Filter returns the file with its directives and the rows that keep accepts. The rows are shared: one that has an effect through the
// result has one on f.
func (f *File) Filter(keep func(*Row) bool) *File {
	some := *f
	some.Rows, some.by = nil, map[string]*Row{}
	for _, row := range f.Rows {
		switch {
		case row.Directive:
			some.Rows = append(some.Rows, row)
		case keep(row):
			some.Rows = append(some.Rows, row)
			some.by[f.key(row)] = row
		}
	}
	return &some
}

// Columns splits a line at |.
func Columns(line string) []string { return split(line, "|") }

// List splits a column at commas.
func List(column string) []string { return split(column, ",") }

func split(s, at string) []string {
	all := strings.Split(s, at)
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

func (f *File) row(at string, columns []string) {
	row := &Row{Columns: columns, At: at}
	if n := len(columns); n < f.form.Least || f.form.Most > 0 && n > f.form.Most {
		f.Fail(at, "%d columns; want %s", n, f.form.Want)
		return
	}
	if len(f.form.Key) > 0 && !f.Once(f.key(row), at) {
		return
	}
	f.by[f.key(row)] = row
	f.Rows = append(f.Rows, row)
}

func (f *File) key(row *Row) string {
	var words []string
	for _, i := range f.form.Key {
		words = append(words, row.Columns[i])
	}
	return strings.Join(words, " ")
}

// Once reports whether a name is new. For a duplicate it adds an error.
func (f *File) Once(name, at string) bool {
	if old := f.by[name]; old != nil {
		f.Fail(at, "duplicate %s, first at %s", name, old.At)
		return false
	}
	f.by[name] = &Row{At: at}
	return true
}

func (f *File) label(at string, c []string) {
	least := len(Columns(f.form.Labels))
	if len(c) < least || len(c) > least+f.form.MoreLabels || slices.Contains(c, "") {
		f.Fail(at, "want = %s", f.form.Labels)
		return
	}
	if !f.Once(fmt.Sprintf("label %q", c[0]), at) {
		return
	}
	f.labels = append(f.labels, &Label{Name: c[0], Reason: c[1], Source: c[2], More: strings.Join(c[3:], ""), At: at})
}

// Use returns the label that a row refers to. A label must precede the rows that use it.
func (f *File) Use(name string, row *Row) *Label {
	i := slices.IndexFunc(f.labels, func(l *Label) bool { return l.Name == name })
	if i < 0 || f.line(f.labels[i].At) > f.line(row.At) {
		f.Fail(row.At, "unknown label %q; add a line above: = %s", name,
			strings.Replace(f.form.Labels, "label", name, 1))
		return &Label{}
	}
	f.labels[i].used = true
	return f.labels[i]
}

func (f *File) line(at string) (n int) {
	fmt.Sscanf(strings.TrimPrefix(at, f.Name+":"), "%d", &n)
	return n
}

// Fail adds an error for the line at.
func (f *File) Fail(at, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s: %w", at, fmt.Errorf(format, args...)))
}

// Err returns the errors of the file, including unused labels. Call it after Use was called for all rows.
func (f *File) Err() error {
	errs := slices.Clone(f.errs)
	for _, l := range f.labels {
		if !l.used {
			errs = append(errs, fmt.Errorf("%s: no row uses label %q; delete it", l.At, l.Name))
		}
	}
	return errors.Join(errs...)
}

// Find returns the row with a key and marks it as fired, or returns nil.
func (f *File) Find(key ...string) *Row {
	row := f.Lookup(key...)
	if row != nil {
		row.Fired = true
	}
	return row
}

// Lookup returns the row with a key, or nil.
func (f *File) Lookup(key ...string) *Row { return f.by[strings.Join(key, " ")] }

// Stale returns the rows that did not fire.
func (f *File) Stale() []*Row {
	return slices.DeleteFunc(slices.Clone(f.Rows), func(row *Row) bool { return row.Fired || row.Directive })
}

// Rest returns the columns from the nth on, as text.
func (r *Row) Rest(n int) string { return strings.Join(r.Columns[n:], " ") }
