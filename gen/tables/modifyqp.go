// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// ModifyQPName is the name of the table returned by ReadModifyQP: the attributes that a queue pair of a type requires
// to enter a state.
const ModifyQPName = "modify_qp"

// All releases read so far have tables for these types. A page with other types needs manual review.
var modifyQPTypes = []string{"IBV_QPT_UD", "IBV_QPT_UC", "IBV_QPT_RC", "IBV_QPT_RAW_PACKET"}

// The page's names of the states in its tables, in order, starting from reset.
var modifyQPStates = [][2]string{{"Init", "IBV_QPS_INIT"}, {"RTR", "IBV_QPS_RTR"}, {"RTS", "IBV_QPS_RTS"}}

var (
	modifyQPTitle = regexp.MustCompile(`^For QP Transport Service Type +(IBV_QPT_[A-Z_]+):$`)
	attributeName = regexp.MustCompile(`^IBV_QP_[A-Z][A-Z0-9_]*$`)
)

// ReadModifyQP parses the tables of required attributes in the page ibv_modify_qp.3, one for each queue pair type. It
// returns a single table: rows are types, columns are the states entered, cells are lists of attributes.
func ReadModifyQP(page string, text []byte) (model.Table, error) {
	p := &pageReader{page: page, lines: strings.Split(string(bytes.TrimSuffix(text, []byte("\n"))), "\n")}
	t := model.Table{Name: ModifyQPName, Page: page}
	for _, s := range modifyQPStates {
		t.Columns = append(t.Columns, s[1])
	}
	ended := false // a section has followed the last table
	for p.more() {
		line := p.text()
		title := modifyQPTitle.FindStringSubmatch(line)
		if title == nil {
			ended = ended || strings.HasPrefix(line, ".SH ")
			continue
		}
		ended = false
		row, err := p.requiredAttributes(title[1])
		if err != nil {
			return t, err
		}
		if slices.ContainsFunc(t.Rows, func(r model.TableRow) bool { return r.Name == row.Name }) {
			return t, p.errorf("a second table for %s", row.Name)
		}
		t.Rows = append(t.Rows, row)
	}
	var types []string
	for _, row := range t.Rows {
		types = append(types, row.Name)
	}
	if !slices.Equal(types, modifyQPTypes) {
		return t, p.errorf("the page has tables for %q, not %q; check the new page and change modifyQPTypes", types,
			modifyQPTypes)
	}
	if !ended {
		return t, p.cutOff("the tables of required attributes")
	}
	return t, nil
}

// text returns the next line without font changes.
func (p *pageReader) text() string {
	return strings.TrimSpace(fontEscape.ReplaceAllString(p.read(), ""))
}

// requiredAttributes parses the table of one type, which ends at .fi. A line without a state continues the previous
// one.
func (p *pageReader) requiredAttributes(qpType string) (model.TableRow, error) {
	row := model.TableRow{Name: qpType}
	var attributes []string
	open := false // the previous line ended with a comma
	end := func() { row.Cells = append(row.Cells, strings.Join(attributes, ", ")) }
	for {
		if !p.more() {
			return row, p.errorf("the table of %s does not end with .fi", qpType)
		}
		line := p.text()
		if line == ".sp" || strings.HasPrefix(line, "Next state") ||
			strings.Trim(strings.ReplaceAll(line, `\-`, ""), " ") == "" {
			continue
		}
		if line == ".fi" {
			end()
			break
		}
		state, rest, _ := strings.Cut(line, " ")
		if at := len(row.Cells); !open {
			if attributes != nil {
				end()
				at++
			}
			if at >= len(modifyQPStates) || state != modifyQPStates[at][0] {
				return row, p.errorf("%s: %.60q is not the next state of %v", qpType, state, modifyQPStates)
			}
			attributes, line = []string{}, rest
		}
		open = strings.HasSuffix(line, ",")
		for _, name := range strings.Split(strings.TrimSuffix(line, ","), ",") {
			name = strings.TrimSpace(name)
			if !attributeName.MatchString(name) || slices.Contains(attributes, name) {
				return row, p.errorf("%s: %.60q is repeated, or not an attribute", qpType, name)
			}
			attributes = append(attributes, name)
		}
	}
	if open || len(row.Cells) != len(modifyQPStates) {
		return row, p.errorf("the table of %s ends after %d of %d states", qpType, len(row.Cells), len(modifyQPStates))
	}
	return row, nil
}
