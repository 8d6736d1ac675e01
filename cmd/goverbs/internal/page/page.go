// SPDX-License-Identifier: BSD-2-Clause

// Package page is what a subcommand prints: values for people as text, and the same values as JSON.
package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/goverbs/internal/printable"
)

// Text is a value that people read, and which marshals as JSON for programs.
type Text interface {
	// WriteText writes lines for people.
	WriteText(w io.Writer) error
}

// Print writes a value: as one JSON document with two spaces of indent, or as text without control characters.
func Print(w io.Writer, v Text, asJSON bool) error {
	if !asJSON {
		c := printable.Writer(w)
		return errors.Join(v.WriteText(c), c.Close())
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Table writes rows below their headings, in columns. A row has as many cells as there are headings.
func Table(w io.Writer, headings []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// Width is how wide paragraphs are.
const Width = 100

// Paragraph writes a label and text behind it, broken into lines of Width that begin below the text's beginning.
func Paragraph(w io.Writer, label, text string, indent int) error {
	line, empty := fmt.Sprintf("%-*s", indent, label), true
	for word := range strings.FieldsSeq(text) {
		if !empty && len(line)+1+len(word) > Width {
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
			line, empty = strings.Repeat(" ", indent), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

// Say writes a line of goverbs without control characters.
func Say(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "goverbs: %s\n", printable.Text(fmt.Sprintf(format, args...)))
}
