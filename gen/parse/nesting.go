// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// The C parser is recursive, and a Go program cannot recover from a stack overflow. The headers of rdma-core are far
// below these limits. ExpansionLimit limits macro expansion.
const (
	maxNesting = 200     // nested ( [ { and #if
	maxRun     = 2000    // tokens between two of ; , { and }
	maxElse    = 2000    // else branches in a header; each is nested in the previous statement
	maxText    = 8 << 20 // size of a header in bytes
)

// nesting is the depth at a position.
type nesting struct{ brackets, run int }

// checkNesting rejects a header whose nesting is too deep for the C parser.
func checkNesting(name, source string) error {
	if len(source) > maxText {
		return fmt.Errorf("%s: %d bytes; a header has at most %d", name, len(source), maxText)
	}
	var (
		now, outside nesting // outside is the state before the current directive
		directive    bool
		ifs, elses   int
		line         = 1
		lineStarts   = true
		rest         = source
	)
	for len(rest) > 0 {
		word := nextToken(rest)
		rest = rest[len(word):]
		at := line
		line += strings.Count(word, "\n")
		switch {
		case word == "\n":
			if directive {
				now, directive = outside, false
			}
			lineStarts = true
			continue
		case isSpace(word):
			continue
		case word == "#" && lineStarts:
			directive, outside, now = true, now, nesting{}
		case slices.Contains([]string{"(", "[", "{", "<:", "<%", "??<"}, word):
			now.brackets++
		case slices.Contains([]string{")", "]", "}", ":>", "%>", "??>"}, word):
			now.brackets--
		case directive && now.run == 1 && strings.HasPrefix(word, "if"):
			ifs++
		case directive && now.run == 1 && word == "endif":
			ifs--
		case !directive && word == "else":
			elses++
		}
		spliced := strings.HasPrefix(rest, "\\\n") || strings.HasPrefix(rest, "\\\r\n")
		if directive && now.run == 1 && (word == "line" || word[0] >= '0' && word[0] <= '9' || spliced) ||
			lineStarts && (word == "%:" || word == "??=") {
			return fmt.Errorf("%s:%d: #line, possibly hidden: positions determine which declarations are public; "+
				"remove it", name, at)
		}
		lineStarts = false
		now.run++
		what := ""
		switch {
		case now.brackets > maxNesting:
			what = fmt.Sprintf("more than %d nested brackets", maxNesting)
		case ifs > maxNesting:
			what = fmt.Sprintf("more than %d nested #if", maxNesting)
		case now.run > maxRun:
			what = fmt.Sprintf("more than %d tokens without a ; , { or }", maxRun)
		case elses > maxElse:
			what = fmt.Sprintf("more than %d else", maxElse)
		}
		if what != "" {
			return fmt.Errorf("%s:%d: %s: nested too deeply; split it, or raise the limit in "+
				"gen/parse/nesting.go", name, at, what)
		}
		if !directive && slices.Contains([]string{";", ",", "{", "}"}, word) {
			now.run = 0
		}
	}
	return nil
}

func isSpace(word string) bool {
	return strings.TrimLeft(word, " \t\r\f\v\\\n") == "" || strings.HasPrefix(word, "/*") ||
		strings.HasPrefix(word, "//")
}

// nextToken returns the first token of s: a word, a line end, a comment, a literal, other space, or a single character.
func nextToken(s string) string {
	for _, pair := range []string{"<:", ":>", "<%", "%>", "%:", "\\\n"} {
		if strings.HasPrefix(s, pair) {
			return pair
		}
	}
	for _, three := range []string{"??<", "??>", "??=", "\\\r\n"} {
		if strings.HasPrefix(s, three) {
			return three
		}
	}
	switch {
	case strings.HasPrefix(s, "/*"):
		return s[:2] + through(s[2:], "*/")
	case strings.HasPrefix(s, "//"):
		return upTo(s, '\n')
	case s[0] == '"' || s[0] == '\'':
		return literal(s)
	case s[0] == '\n' || !isWord(s[0]):
		return s[:1]
	}
	n := strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !isWord(byte(r)) })
	if n < 0 {
		return s
	}
	return s[:max(n, 1)]
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// through returns the prefix of s up to and including the first end, or s if there is none.
func through(s, end string) string {
	if i := strings.Index(s, end); i >= 0 {
		return s[:i+len(end)]
	}
	return s
}

func upTo(s string, end byte) string {
	if i := strings.IndexByte(s, end); i >= 0 {
		return s[:i]
	}
	return s
}

// literal returns the string or character literal at the start of s, which ends on the same line.
func literal(s string) string {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return s[:i+1]
		case '\n':
			return s[:i]
		}
	}
	return s
}
