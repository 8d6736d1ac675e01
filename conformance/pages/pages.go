// SPDX-License-Identifier: BSD-2-Clause

// Package pages extracts the code of README.md and docs/, so that its test can build all of it and run complete
// programs.
package pages

import (
	"fmt"
	"strings"
)

// A block is a fenced block of a page.
type block struct {
	line int    // first line of text
	info string // the word after the fence: go, output
	mark string // text of the comment before it: <!-- from rdma/example_test.go --> is "from rdma/example_test.go"
	text string
}

// blocks returns the fenced blocks of a page.
func blocks(page string) (all []block, err error) {
	var open *block
	mark := ""
	for i, line := range strings.Split(page, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case open == nil && fence:
			open = &block{line: i + 2, info: strings.TrimSpace(info), mark: mark}
			mark = ""
		case open != nil && fence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "<!--") && strings.HasSuffix(line, "-->"):
			mark = strings.TrimSpace(line[len("<!--") : len(line)-len("-->")])
		case strings.TrimSpace(line) != "":
			mark = ""
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the fence is not closed", open.line-1)
	}
	return all, nil
}

// A kind determines how a block of Go is compiled.
type kind int

const (
	program  kind = iota // a complete program: built and run
	test                 // a file of tests, which are run
	body                 // statements, with the variables of testdata/body.go: built
	fragment             // part of a file that is built elsewhere, with which it is compared
)

// kindOf returns the kind of a block of Go, and the file of a fragment.
func kindOf(b block) (k kind, from string, err error) {
	switch file, ok := strings.CutPrefix(b.mark, "from "); {
	case strings.HasPrefix(b.text, "package ") && strings.Contains(b.text, "\nfunc Test"):
		return test, "", nil
	case strings.HasPrefix(b.text, "package main\n"):
		return program, "", nil
	case ok:
		return fragment, file, nil
	case b.mark == "body":
		return body, "", nil
	}
	return 0, "", fmt.Errorf("line %d: not a complete program, and no comment above it says how to compile it:"+
		" <!-- from FILE --> or <!-- body -->", b.line)
}

// flat returns a text without indentation and empty lines.
func flat(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
