// SPDX-License-Identifier: BSD-2-Clause

// Package console runs the commands of a page and compares their output with the page.
//
// A block "console" is a session: a line that begins with "$ " is a bash command, followed by its output. A command
// that ends with " &" is a server: the next command runs once it listens; its output is omitted, and it is killed at
// the end of the block. In output, "…" matches any text, and alone on a line any lines. After <!-- numbers vary -->,
// numbers and white space are not compared.
// Below <!-- numbers vary -->, numbers and white space need not be the same.
package console

import (
	"fmt"
	"regexp"
	"strings"
)

// Session is a block of a page.
type Session struct {
	Line     int // line of the page where the block begins
	Commands []Command
	vary     bool
}

// Command is a command of a session, with its expected output.
type Command struct {
	Text, Prints string
	Server       bool
	line         int // line of the page, before the output
}

// varies is the mark before a block whose numbers vary.
const varies = "<!-- numbers vary -->"

// Sessions returns the sessions of a page.
func Sessions(page string) (all []Session, err error) {
	var open *Session
	vary, fenced := false, false
	for i, line := range strings.Split(page, "\n") {
		text, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			if open != nil {
				all = append(all, *open)
			}
			if open = nil; line == "```console" && !fenced {
				open = &Session{Line: i + 1, vary: vary}
			}
			vary, fenced = false, !fenced
		case open != nil && isCommand:
			text, server := strings.CutSuffix(text, " &")
			open.Commands = append(open.Commands, Command{Text: text, Server: server, line: i + 1})
		case open != nil && len(open.Commands) == 0:
			return nil, fmt.Errorf("line %d: a session begins with a command, behind \"$ \"", i+1)
		case open != nil:
			open.Commands[len(open.Commands)-1].Prints += line + "\n"
		case line == varies:
			vary = true
		case line != "":
			vary = false
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the fence is not closed", open.Line)
	}
	return all, nil
}

// number matches text that may vary.
var number = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+(\.[0-9]+)?`)

// plain returns a text without its numbers and with single spaces.
func plain(text string) string {
	return strings.Join(strings.Fields(number.ReplaceAllString(text, "0")), " ")
}

// Fits reports whether the output of a command matches the page.
func (s *Session) Fits(c *Command, printed string) bool {
	if s.vary {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(plain(c.Prints)), "…", ".*")
		return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(plain(printed))
	}
	var pattern strings.Builder
	for line := range strings.Lines(c.Prints) {
		if line == "…\n" {
			pattern.WriteString("(?:.*\n)*")
		} else {
			pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*"))
		}
	}
	return regexp.MustCompile(`\A` + pattern.String() + `\z`).MatchString(printed)
}
