// SPDX-License-Identifier: BSD-2-Clause

// Package printable makes untrusted text safe for a terminal.
package printable

import (
	"io"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
)

// clean replaces control characters, which terminals interpret, and format characters, which reorder text. Text may
// come from other users' programs and files, and from peers.
var clean = runes.Map(func(r rune) rune {
	if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
		return utf8.RuneError
	}
	return r
})

// Writer returns a writer that writes text to w without control characters. Close flushes, and does not close w.
func Writer(w io.Writer) io.WriteCloser { return transform.NewWriter(w, clean) }

// Text returns the text without control characters.
func Text(text string) string { return clean.String(text) }
