// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

var answerMarks = map[Answer]string{Yes: "X", No: ".", Elsewhere: "-", Unspecified: "?"}

// postSendText collects the text of RenderPostSend.
type postSendText struct {
	send, types, opcodes *Grid
	notes                []string
}

// RenderPostSend formats the rules of ibv_post_send as text: opcode by queue pair type, the rules of flags, and a
// footnote for each cell that a source other than the man page decides or disputes. It returns "" if the grids do not
// include the tables of ibv_post_send.
func RenderPostSend(release *model.Release, grids []*Grid) string {
	all := gridSet{}
	for _, g := range grids {
		all[g.Name] = g
	}
	t := &postSendText{send: all["post_send"], types: all["send_flag_types"], opcodes: all["send_flag_opcodes"]}
	if t.send == nil || t.types == nil || t.opcodes == nil {
		return ""
	}
	qpTypes, opcodes := t.send.Dims[0].Names, t.send.Dims[1].Names
	rows := [][]string{{"opcode"}}
	for _, name := range qpTypes {
		rows[0] = append(rows[0], strings.TrimPrefix(name, "IBV_QPT_"))
	}
	for _, op := range opcodes {
		row := []string{strings.TrimPrefix(op, "IBV_WR_")}
		for _, qpt := range qpTypes {
			v := t.send.At(qpt, op).Validity
			row = append(row, answerMarks[v.Answer]+t.foot(v))
		}
		rows = append(rows, row)
	}
	out := fmt.Sprintf("Requests that ibv_post_send accepts (%s)\n\n%s\n", t.send.Source(), layRows(rows)) +
		"X valid   . not valid   - not posted with ibv_post_send   ? unspecified\n\n"
	rows = [][]string{{"flag", "queue pair types", "opcodes"}}
	for _, flag := range t.types.Dims[0].Names {
		var byType, byOpcode []string // halves for valid operations
		for _, qpt := range qpTypes {
			byType = append(byType, t.half(qpt, t.types.At(flag, qpt).Validity,
				func(valid []string) bool { return valid[0] == qpt }))
		}
		for _, op := range opcodes {
			byOpcode = append(byOpcode,
				t.half(op, t.opcodes.At(flag, op).Validity, func(valid []string) bool { return valid[1] == op }))
		}
		name := strings.TrimPrefix(flag, "IBV_SEND_")
		if condition := flagCondition(release, flag); condition != "" {
			name += t.foot(Validity{Note: condition, Source: t.send.Source()})
		}
		rows = append(rows, []string{name, listHalf(byType), listHalf(byOpcode)})
	}
	out += layRows(rows) + "\n"
	for i, text := range t.notes {
		out += fmt.Sprintf("[%d] %s\n", i+1, text)
	}
	return out
}

// foot adds a footnote to a cell unless all its facts come from the page.
func (t *postSendText) foot(v Validity) string {
	text := v.Note
	if v.Source != t.send.Source() {
		text = joinNotes(fmt.Sprintf("%s (%s)", v.Reason, v.Source), v.Note)
	}
	if text == "" {
		return ""
	}
	if !slices.Contains(t.notes, text) {
		t.notes = append(t.notes, text)
	}
	return fmt.Sprintf("[%d]", slices.Index(t.notes, text)+1)
}

// layRows aligns rows in columns, without trailing blanks.
func layRows(rows [][]string) string {
	width := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s", width[i]+2, cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// half formats a queue pair type or an opcode in the rule of a flag: with a mark if it is not valid, empty if it has no
// valid operation.
func (t *postSendText) half(name string, v Validity, has func(operation []string) bool) string {
	for n := range t.send.Cells {
		if t.send.Cells[n].Answer != Yes || !has(t.send.Combination(n)) {
			continue
		}
		_, short, _ := strings.Cut(strings.TrimPrefix(name, "IBV_"), "_")
		switch v.Answer {
		case Yes:
		case No:
			short = "not " + short
		default:
			short = answerMarks[v.Answer] + short
		}
		return short + t.foot(v)
	}
	return ""
}

// listHalf formats half of a flag's rule: "all", or the list of valid or of invalid items, whichever is shorter.
func listHalf(names []string) string {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	excluded := func(n string) bool { return strings.HasPrefix(n, "not ") }
	remarkable := func(n string) bool { return strings.Contains(n, "[") || strings.HasPrefix(n, "?") }
	if !slices.ContainsFunc(names, excluded) {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "?") }) {
			names = append([]string{"all"}, slices.DeleteFunc(names, func(n string) bool { return !remarkable(n) })...)
		}
	}
	return strings.Join(slices.DeleteFunc(names, func(n string) bool { return excluded(n) && !remarkable(n) }), ", ")
}
