// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The C parser does not detect include cycles. Every included header that itself includes headers must therefore have
// an include guard.

var (
	spliced   = regexp.MustCompile(`\\\r?\n`)
	comment   = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	directive = regexp.MustCompile(`(?m)^[ \t\f\v]*#[ \t]*(\w+)[ \t]*([^\r\n]*)`)
	including = regexp.MustCompile(`^(?:<([^>]*)>|"([^"]*)")\s*$`)
)

var includeGuard = regexp.MustCompile(`^(?:ifndef|if ! ?defined) ?\(? ?(\w+) ?\)?\s*$`)

// directives returns the preprocessor directives of a text, each as its name and its arguments.
func directives(text string) [][]string {
	text = comment.ReplaceAllString(spliced.ReplaceAllString(text, ""), " ")
	return directive.FindAllStringSubmatch(text, -1)
}

// checkIncludes rejects a header that includes another one without an include guard.
func (src Source) checkIncludes(name, text string) error {
	for _, d := range directives(text) {
		if !strings.HasPrefix(d[1], "include") && d[1] != "import" {
			continue
		}
		m := including.FindStringSubmatch(d[2])
		if m == nil || d[1] != "include" {
			return fmt.Errorf("%s: #%s %s is not supported; write the name of the header", path.Join(src.Name, name),
				d[1], d[2])
		}
		for _, included := range []string{m[1], m[2], path.Join(path.Dir(name), m[2])} {
			if included = path.Clean(included); !src.upstream(included) {
				continue
			}
			inner, err := fs.ReadFile(src.Include, included)
			if err == nil && includes(string(inner)) && !guarded(string(inner)) {
				return fmt.Errorf("%s: included by %s, but has no include guard, so the C parser might loop; "+
					"put #ifndef, #define and #endif around its contents", path.Join(src.Name, included), name)
			}
		}
	}
	return nil
}

// includes reports whether a header includes anything.
func includes(text string) bool {
	return slices.ContainsFunc(directives(text), func(d []string) bool { return strings.HasPrefix(d[1], "include") })
}

// guarded reports whether a header's first and last directives are an include guard.
func guarded(text string) bool { return guardOf(text) != "" }

// guardOf returns the macro of a header's include guard, or "".
func guardOf(text string) string {
	all := directives(text)
	if len(all) < 3 || all[1][1] != "define" {
		return ""
	}
	m := includeGuard.FindStringSubmatch(all[0][1] + " " + all[0][2])
	words := strings.Fields(all[1][2])
	if m == nil || len(words) == 0 || words[0] != m[1] {
		return ""
	}
	name := m[1]
	depth := 0
	for i, d := range all {
		switch d[1] {
		case "if", "ifdef", "ifndef":
			depth++
		case "endif":
			depth--
		case "else", "elif":
			if depth == 1 {
				return ""
			}
		case "undef":
			if strings.TrimSpace(d[2]) == name {
				return ""
			}
		}
		if depth == 0 && i < len(all)-1 {
			return ""
		}
	}
	return name
}
