// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// PostSendName is the name of the table returned by ReadPostSend: opcode by queue pair type.
const PostSendName = "post_send"

// The table and the list of flags have had this shape in all releases so far. Another shape needs manual review, since
// an added or removed row or column changes what is valid.
const (
	postSendColumns = 5
	postSendRows    = 11
	postSendFlags   = 5
)

// opcodeClasses maps the words with which the page limits a flag to operations.
//
// The page does not define whether a send with invalidate counts as "Send". It does here: the InfiniBand and iWARP
// specifications define it as a send, with a solicited form, and providers accept the flags for it. IBV_WR_TSO does
// not: the page never calls it a send.
var opcodeClasses = map[string][]string{
	"Send":                      {"IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_SEND_WITH_INV"},
	"RDMA Write":                {"IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM"},
	"RDMA Write with immediate": {"IBV_WR_RDMA_WRITE_WITH_IMM"},
}

var (
	qpTypeName = regexp.MustCompile(`^IBV_QPT_[A-Z][A-Z0-9_]*$`)
	opcodeName = regexp.MustCompile(`^IBV_WR_[A-Z][A-Z0-9_]*$`)
	flagEntry  = regexp.MustCompile(`^\.B (IBV_SEND_[A-Z][A-Z0-9_]*) ?\\fR +(\S.*)$`)
	// ruleWord matches words that may express a limit, so that a new limit is not mistaken for a description.
	ruleWord = regexp.MustCompile(`(?i)\b(valid|invalid|only|relevant|must|mustn't|requires?|required|` +
		`unless|except|if|when|where|` +
		`allowed|supported|unsupported|ignored|cannot|can't|may|should|shall|needs?|applies|applicable|restricted|limited)\b`)
	// sentenceEnd matches a full stop followed by white space; "e.g.x" and "2.0" do not end a sentence.
	sentenceEnd = regexp.MustCompile(`\.(\s+|$)`)
)

// pageReader reads the lines of a page and tracks its position for errors.
type pageReader struct {
	page  string
	lines []string
	next  int // index of the next line, which is the 1-based number of the line that read returned
}

func (p *pageReader) more() bool { return p.next < len(p.lines) }

func (p *pageReader) read() string {
	p.next++
	return p.lines[p.next-1]
}

func (p *pageReader) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: "+format, append([]any{p.page, max(p.next, 1)}, args...)...)
}

// cutOff returns the error for a truncated page. In every page, a section follows the tables.
func (p *pageReader) cutOff(what string) error {
	return p.errorf("the page ends in %s without a section after it: it is cut off; use the complete page", what)
}

// ReadPostSend parses the page ibv_post_send.3: the table of opcodes by queue pair type, and the rules of the send
// flags after it. It rejects an unknown shape with page and line.
func ReadPostSend(page string, text []byte) (model.Table, []model.Flag, error) {
	p := &pageReader{page: page, lines: strings.Split(string(bytes.TrimSuffix(text, []byte("\n"))), "\n")}
	table, err := p.postSendTable()
	if err != nil {
		return model.Table{}, nil, err
	}
	flags, err := p.sendFlags(&table)
	if err != nil {
		return model.Table{}, nil, err
	}
	return table, flags, nil
}

func (p *pageReader) postSendTable() (model.Table, error) {
	t := model.Table{Name: PostSendName, Page: p.page}
	header, err := p.tableHeader()
	if err != nil {
		return t, err
	}
	for _, c := range header[1:] {
		if !qpTypeName.MatchString(c) || slices.Contains(t.Columns, c) {
			return t, p.errorf("column %q is repeated, or not a queue pair type", c)
		}
		t.Columns = append(t.Columns, c)
	}
	if len(t.Columns) != postSendColumns {
		return t, p.errorf("the opcode table has %d queue pair types, not %d; check the new page and change "+
			"postSendColumns", len(t.Columns), postSendColumns)
	}
	if !p.more() || !isRule(p.read(), len(header)) {
		return t, p.errorf("no line of dashes under the header of the opcode table")
	}
	for {
		if !p.more() {
			return t, p.errorf("the opcode table does not end with .fi")
		}
		line := p.read()
		if line == ".fi" {
			break
		}
		row, err := p.postSendRow(line, len(t.Columns))
		if err != nil {
			return t, err
		}
		if slices.ContainsFunc(t.Rows, func(r model.TableRow) bool { return r.Name == row.Name }) {
			return t, p.errorf("the opcode table has a second row for %s", row.Name)
		}
		t.Rows = append(t.Rows, row)
	}
	if len(t.Rows) != postSendRows {
		return t, p.errorf("the opcode table has %d rows, not %d; check the new page and change postSendRows",
			len(t.Rows), postSendRows)
	}
	for _, line := range p.lines[p.next:] {
		if isTableHeader(line) {
			return t, p.errorf("a second opcode table follows")
		}
	}
	return t, nil
}

// tableHeader moves to the header of the opcode table and returns its cells.
func (p *pageReader) tableHeader() ([]string, error) {
	before := ""
	for p.more() {
		line := p.read()
		if isTableHeader(line) {
			if before != ".nf" {
				return nil, p.errorf("the opcode table does not start right after .nf")
			}
			return cells(line), nil
		}
		before = line
	}
	return nil, p.errorf("the page has no opcode table (a line that starts with \"OPCODE |\" after .nf)")
}

func isTableHeader(line string) bool {
	return cells(line)[0] == "OPCODE" && strings.Contains(line, "|")
}

func cells(line string) []string {
	all := strings.Split(line, "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// isRule reports whether the line is a horizontal rule of n columns: dashes, with a + between columns.
func isRule(line string, n int) bool {
	parts := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\-`, "-"), "+")
	return len(parts) == n &&
		!slices.ContainsFunc(parts, func(s string) bool { return s == "" || strings.Trim(s, "-") != "" })
}

func (p *pageReader) postSendRow(line string, columns int) (model.TableRow, error) {
	all := cells(line)
	row := model.TableRow{Name: all[0]}
	if !opcodeName.MatchString(row.Name) {
		return row, p.errorf("%.60q is not the name of an opcode", row.Name)
	}
	if len(all) != 1+columns {
		return row, p.errorf("%s has %d cells, not %d", row.Name, len(all)-1, columns)
	}
	for _, mark := range all[1:] {
		switch mark {
		case "X":
			row.Cells = append(row.Cells, "yes")
		case "":
			row.Cells = append(row.Cells, "no")
		default:
			return row, p.errorf("%s has a cell marked %.60q, neither X nor empty", row.Name, mark)
		}
	}
	return row, nil
}

// sendFlags parses the list of flags between the table and the next section.
func (p *pageReader) sendFlags(t *model.Table) ([]model.Flag, error) {
	for p.more() && p.lines[p.next] != ".TP" { // introduction of the list
		if line := p.read(); isRequest(line) && line != ".PP" {
			return nil, p.errorf("%.60q is between the opcode table and the list of send flags, which starts "+
				"with .TP", line)
		}
	}
	var flags []model.Flag
	for p.more() && p.lines[p.next] == ".TP" {
		flag, err := p.sendFlag(t)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(flags, func(f model.Flag) bool { return f.Name == flag.Name }) {
			return nil, p.errorf("%s is listed a second time", flag.Name)
		}
		flags = append(flags, flag)
	}
	if len(flags) != postSendFlags {
		return nil, p.errorf("%d send flags follow the opcode table, not %d; check the new page and change "+
			"postSendFlags", len(flags), postSendFlags)
	}
	if !p.more() {
		return nil, p.cutOff("the list of send flags")
	}
	if line := p.read(); !strings.HasPrefix(line, ".SH ") {
		return nil, p.errorf("%.60q ends the list of send flags, not a new section", line)
	}
	return flags, nil
}

func (p *pageReader) sendFlag(t *model.Table) (model.Flag, error) {
	flag := model.Flag{Page: p.page}
	p.read() // .TP
	if !p.more() {
		return flag, p.errorf("nothing follows .TP")
	}
	entry := flagEntry.FindStringSubmatch(p.read())
	if entry == nil {
		return flag, p.errorf("%.60q is not the entry of a send flag (.B NAME \\fR text)", p.lines[p.next-1])
	}
	flag.Name = entry[1]
	text := entry[2]
	for p.more() && !isRequest(p.lines[p.next]) {
		text += " " + p.read()
	}
	text = fontEscape.ReplaceAllString(text, "")
	for _, sentence := range sentenceEnd.Split(text, -1) {
		if sentence = strings.Join(strings.Fields(sentence), " "); sentence == "" {
			continue
		}
		if err := p.flagRule(t, &flag, sentence); err != nil {
			return flag, err
		}
	}
	return flag, nil
}

// isRequest reports whether the line is a roff request.
func isRequest(line string) bool { return strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") }

// flagRule parses one sentence about a flag: a limit in one of the page's forms, or a description.
func (p *pageReader) flagRule(t *model.Table, flag *model.Flag, sentence string) error {
	unknown := func() error {
		return p.errorf("%s: unknown sentence %.200q; extend flagRule", flag.Name, sentence)
	}
	limit, limited := strings.CutPrefix(sentence, "Valid only ")
	switch {
	case limited && strings.HasPrefix(limit, "for QPs with Transport Service Type "):
		if flag.QPTypes != nil {
			return unknown()
		}
		for _, name := range listed(strings.TrimPrefix(limit, "for QPs with Transport Service Type ")) {
			if !slices.Contains(t.Columns, name) || slices.Contains(flag.QPTypes, name) {
				return p.errorf("%s: %.60q is repeated, or not a queue pair type of the opcode table", flag.Name, name)
			}
			flag.QPTypes = append(flag.QPTypes, name)
		}
	case limited && strings.HasPrefix(limit, "for "):
		if flag.Opcodes != nil {
			return unknown()
		}
		for _, class := range listed(strings.TrimPrefix(limit, "for ")) {
			opcodes, ok := opcodeClasses[class]
			if !ok {
				return p.errorf("%s: unknown operation %.60q; extend opcodeClasses", flag.Name, class)
			}
			for _, name := range opcodes {
				if !slices.ContainsFunc(t.Rows, func(r model.TableRow) bool { return r.Name == name }) {
					return p.errorf("%s: %s counts as %q but is not in the opcode table", flag.Name, name, class)
				}
				if !slices.Contains(flag.Opcodes, name) {
					flag.Opcodes = append(flag.Opcodes, name)
				}
			}
		}
	case limited && strings.HasPrefix(limit, "when device_cap_flags in device_attr indicates "):
		if flag.Capability != "" {
			return unknown()
		}
		flag.Capability = "device_cap_flags"
	case strings.HasPrefix(sentence, "Relevant only if QP was created with "):
		if flag.SigAll || !strings.HasSuffix(sentence, " with sq_sig_all=0") {
			return unknown()
		}
		flag.SigAll = true
	case ruleWord.MatchString(sentence):
		return unknown()
	}
	return nil
}

// listed splits "A, B and C".
func listed(s string) []string {
	return strings.Split(strings.ReplaceAll(s, " and ", ", "), ", ")
}
