// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// Markdown lists the man pages that are also read from Markdown, their only form in a source tree that is not built.
// The file has the name of the page with .md appended.
var Markdown = []string{"ibv_wr_post.3"}

const markdownSuffix = ".md"

// toPipes moves to the first table of a page in Markdown.
func (p *pageReader) toPipes() error {
	for p.more() && !strings.HasPrefix(p.lines[p.next], "|") {
		p.read()
	}
	if !p.more() {
		return p.errorf("the page has no table (lines that start with |)")
	}
	return nil
}

// pipeCells parses one table row, | a | b |. It returns nil at the end of the table. It rejects, up to the next
// heading, a line that looks like a row but is indented or follows an empty line, since it may be a row of the table.
func (p *pageReader) pipeCells(n int) ([]string, error) {
	for p.more() && strings.HasPrefix(p.lines[p.next], "|") {
		line := strings.TrimSpace(p.read())
		if strings.Trim(line, "|-: ") == "" { // horizontal rule
			continue
		}
		inside, closed := strings.CutSuffix(line[1:], "|")
		row := strings.Split(inside, "|")
		if !closed || len(row) != n {
			return nil, p.errorf("row of %d cells, want %d with | on both sides: %.100q", len(row), n, line)
		}
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		return row, nil
	}
	for ; p.more() && !strings.HasPrefix(p.lines[p.next], "#"); p.next++ {
		if line := p.lines[p.next]; strings.HasPrefix(strings.TrimSpace(line), "|") {
			p.next++
			return nil, p.errorf("%.100q is separated from the rows of the table, which begin with | and follow one "+
				"another", line)
		}
	}
	return nil, nil
}

// markdownFlags parses the section about wr_flags in Markdown: each flag is on its own line, and its description
// follows a colon, possibly after empty lines.
func (p *pageReader) markdownFlags(t *model.Table) error {
	for p.more() && p.lines[p.next] != "## Flags" {
		p.read()
	}
	if !p.more() {
		return p.errorf("the page has no section on flags (## Flags)")
	}
	p.read()
	for p.more() && !strings.HasPrefix(p.lines[p.next], "#") {
		line := p.read()
		name := strings.Trim(line, "* ")
		if name == "" || strings.ContainsAny(line[:1], " \t:") { // part of a description
			continue
		}
		next := p.next
		for next < len(p.lines) && strings.TrimSpace(p.lines[next]) == "" {
			next++
		}
		if next == len(p.lines) || !strings.HasPrefix(strings.TrimSpace(p.lines[next]), ":") {
			if wrFlagEntry.MatchString(name) {
				return p.errorf("%s is listed without a description (a line that starts with a colon)", name)
			}
			continue
		}
		if err := p.wrFlag(t, name); err != nil {
			return err
		}
	}
	if !p.more() {
		return p.cutOff("the section on flags")
	}
	return nil
}
