// SPDX-License-Identifier: BSD-2-Clause

// Package printable makes text of other users, hosts and files fit for a terminal.
package printable

import (
	"io"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
)

// clean replaces control characters, which a terminal obeys, and format characters, which change the order of others.
// Other users choose the names of their programs and files, and peers what they send.
var clean = runes.Map(func(r rune) rune {
	if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
		return utf8.RuneError
	}
	return r
})

// Writer returns a writer of text to w without control characters. Close writes what is left, and does not close w.
func Writer(w io.Writer) io.WriteCloser { return transform.NewWriter(w, clean) }

// Text returns a text without control characters.
func Text(text string) string { return clean.String(text) }
