// SPDX-License-Identifier: BSD-2-Clause

// Package page prints the results of subcommands as text or JSON.
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

// Text is a result that can be printed as text or JSON.
type Text interface {
	// WriteText writes lines as text.
	WriteText(w io.Writer) error
}

// Print prints a value as indented JSON or as text without control characters.
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

// Table writes rows in columns below their headings. Each row has one cell per heading.
func Table(w io.Writer, headings []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// Width is the width of paragraphs.
const Width = 100

// Paragraph writes a label and a text, wrapped at Width and indented.
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

// Log writes a line with the prefix "goverbs: ", without control characters.
func Log(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "goverbs: %s\n", printable.Text(fmt.Sprintf(format, args...)))
}
