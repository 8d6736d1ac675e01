// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// WRPostName is the name of the table of work request builders returned by ReadWRPost, with the queue pair types and
// setters of each.
const WRPostName = "wr_post"

// WRFlagsName is the name of the table of flags that the page lists for wr_flags.
const WRFlagsName = "wr_flags"

// wrPostHeader is the header of the page's table.
var wrPostHeader = []string{"Operation", "WR builder", "QP Type Supported", "setters"}

// A page with fewer operations is incomplete. More operations are accepted.
const wrPostLeast = 11

var (
	operationName = regexp.MustCompile(`^[A-Z][A-Z_]*$`)
	builderName   = regexp.MustCompile(`^(ibv_wr_[a-z_]+)\(\)$`)
	betweenRows   = regexp.MustCompile(`^(_?|(lw?(\([0-9.]+n\))? ?)+\.)$`) // horizontal rules and column formats
	wrFlagEntry   = regexp.MustCompile(`^IBV_SEND_[A-Z][A-Z0-9_]*$`)
)

// ReadWRPost parses the page ibv_wr_post.3, or its Markdown if the name ends with .md: the table of builders, and the
// flags listed for wr_flags. Cells and names are copied from the page, including mistakes.
func ReadWRPost(page string, text []byte) (builders, flags model.Table, err error) {
	p := &pageReader{page: page, lines: strings.Split(string(bytes.TrimSuffix(text, []byte("\n"))), "\n")}
	toTable, cells, readFlags := p.toBlocks, p.blockCells, p.wrFlags
	page, markdown := strings.CutSuffix(page, markdownSuffix)
	if markdown {
		toTable, cells, readFlags = p.toPipes, p.pipeCells, p.markdownFlags
	}
	t := model.Table{Name: WRPostName, Page: page, Columns: []string{"builder", "qp_types", "setters"}}
	flags = model.Table{Name: WRFlagsName, Page: page, Columns: []string{"listed"}}
	if err := toTable(); err != nil {
		return t, flags, err
	}
	for i := 0; ; i++ {
		row, err := cells(len(wrPostHeader))
		if err != nil {
			return t, flags, err
		}
		if row == nil {
			break
		}
		if i == 0 {
			if !slices.Equal(row, wrPostHeader) {
				return t, flags, p.errorf("the table has the columns %q, not %q", row, wrPostHeader)
			}
			continue
		}
		builder := builderName.FindStringSubmatch(row[1])
		if !operationName.MatchString(row[0]) || builder == nil || row[2] == "" || row[3] == "" {
			return t, flags, p.errorf("%.100q is not an operation with builder, types and setters", row)
		}
		if slices.ContainsFunc(t.Rows,
			func(r model.TableRow) bool { return r.Name == row[0] || r.Cells[0] == builder[1] }) {
			return t, flags, p.errorf("a second row for %s or %s", row[0], builder[1])
		}
		t.Rows = append(t.Rows, model.TableRow{Name: row[0], Cells: []string{builder[1], row[2], row[3]}})
	}
	if len(t.Rows) < wrPostLeast {
		return t, flags, p.errorf("the table has %d operations, fewer than %d", len(t.Rows), wrPostLeast)
	}
	if err := readFlags(&flags); err != nil {
		return t, flags, err
	}
	if len(flags.Rows) == 0 {
		return t, flags, p.errorf("the section on flags lists none")
	}
	return t, flags, nil
}

// toBlocks moves to the first table of a page.
func (p *pageReader) toBlocks() error {
	for p.more() && p.lines[p.next] != ".TS" {
		p.read()
	}
	if !p.more() {
		return p.errorf("the page has no table (.TS)")
	}
	p.read()
	if !p.more() || p.read() != "tab(@);" {
		return p.errorf("the table does not separate its cells with @")
	}
	return nil
}

// blockCells parses one row of text blocks, T{ … T}@T{ … T}. It returns nil at the end of the table.
func (p *pageReader) blockCells(n int) ([]string, error) {
	for p.more() && p.lines[p.next] != "T{" {
		line := p.read()
		if line == ".TE" {
			return nil, nil
		}
		if !betweenRows.MatchString(line) { // otherwise a row with a missing first line would be skipped
			return nil, p.errorf("%.60q is between the rows of the table", line)
		}
	}
	row := []string{""}
	p.next++
	for {
		if !p.more() {
			return nil, p.errorf("the table does not end with .TE")
		}
		switch line := p.read(); line {
		case "T}@T{":
			row = append(row, "")
		case "T}":
			if len(row) != n {
				return nil, p.errorf("row of %d cells, want %d: %.100q", len(row), n, row)
			}
			return row, nil
		default:
			if isRequest(line) || strings.Contains(line, "T}") {
				return nil, p.errorf("%.60q is in a cell", line)
			}
			last := &row[len(row)-1]
			*last = strings.TrimSpace(*last + " " + fontEscape.ReplaceAllString(line, ""))
		}
	}
}

// wrFlags parses the section about wr_flags, which describes flags without limits.
func (p *pageReader) wrFlags(t *model.Table) error {
	for p.more() && p.lines[p.next] != ".SS Flags" {
		p.read()
	}
	if !p.more() {
		return p.errorf("the page has no section on flags (.SS Flags)")
	}
	p.read()
	for p.more() && !strings.HasPrefix(p.lines[p.next], ".S") {
		line := p.read()
		if name := strings.TrimSpace(fontEscape.ReplaceAllString(line, "")); wrFlagEntry.MatchString(name) ||
			strings.HasPrefix(line, ".TP ") {
			return p.errorf("the list entry %.60q has no .TP line before it", line)
		}
		if line != ".TP" || !p.more() {
			continue
		}
		if err := p.wrFlag(t, p.text()); err != nil {
			return err
		}
	}
	if !p.more() {
		return p.cutOff("the section on flags")
	}
	return nil
}

func (p *pageReader) wrFlag(t *model.Table, name string) error {
	if !wrFlagEntry.MatchString(name) {
		return p.errorf("%.60q is not a flag", name)
	}
	if slices.ContainsFunc(t.Rows, func(r model.TableRow) bool { return r.Name == name }) {
		return p.errorf("a second entry for %s", name)
	}
	t.Rows = append(t.Rows, model.TableRow{Name: name, Cells: []string{"yes"}})
	return nil
}
