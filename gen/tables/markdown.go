// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// Markdown are the man pages that are read from their Markdown, too: a source tree has them in no other form until it
// is built. The file is called as the page, with .md behind.
var Markdown = []string{"ibv_wr_post.3"}

const markdownSuffix = ".md"

// toPipes goes to the first table of a page in Markdown.
func (p *pageReader) toPipes() error {
	for p.more() && !strings.HasPrefix(p.lines[p.next], "|") {
		p.read()
	}
	if !p.more() {
		return p.errorf("the page has no table (lines that start with |)")
	}
	return nil
}

// pipeCells reads one row of a table, | a | b |; nil at its end. What looks like a row and stands apart, indented or
// after an empty line, is refused up to the next heading: it may be one that the table has lost.
func (p *pageReader) pipeCells(n int) ([]string, error) {
	for p.more() && strings.HasPrefix(p.lines[p.next], "|") {
		line := strings.TrimSpace(p.read())
		if strings.Trim(line, "|-: ") == "" { // a rule
			continue
		}
		inside, closed := strings.CutSuffix(line[1:], "|")
		row := strings.Split(inside, "|")
		if !closed || len(row) != n {
			return nil, p.errorf("a row of %d cells, not %d with | on both sides: %.100q", len(row), n, line)
		}
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		return row, nil
	}
	for ; p.more() && !strings.HasPrefix(p.lines[p.next], "#"); p.next++ {
		if line := p.lines[p.next]; strings.HasPrefix(strings.TrimSpace(line), "|") {
			p.next++
			return nil, p.errorf("%.100q stands apart from the rows of the table, which begin with | and follow one "+
				"another", line)
		}
	}
	return nil, nil
}

// markdownFlags reads the section on wr_flags in Markdown: each flag stands on a line of its own, its description
// follows a colon, perhaps after empty lines.
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
		if name == "" || strings.ContainsAny(line[:1], " \t:") { // of a description
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
