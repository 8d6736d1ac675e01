package rules

import (
	"fmt"
	"slices"
	"strings"
)

var answerMarks = map[Answer]string{Yes: "X", No: ".", Elsewhere: "-", Unspecified: "?"}

// Render is the table for people: opcode by queue pair type, the flags' rules, and a footnote wherever a source other than the
// page decides or contradicts it.
func (p *PostSend) Render() string {
	var notes []string
	foot := func(v Validity) string {
		text := v.Note
		if !strings.HasPrefix(v.Source, p.Page+",") {
			text = joinNotes(fmt.Sprintf("%s (%s)", v.Reason, v.Source), v.Note)
		}
		if text == "" {
			return ""
		}
		if !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
		return fmt.Sprintf("[%d]", slices.Index(notes, text)+1)
	}
	rows := [][]string{{"opcode"}}
	for _, name := range p.QPTypes {
		rows[0] = append(rows[0], strings.TrimPrefix(name, "IBV_QPT_"))
	}
	for i, op := range p.Opcodes {
		row := []string{strings.TrimPrefix(op, "IBV_WR_")}
		for _, v := range p.Cells[i] {
			row = append(row, answerMarks[v.Answer]+foot(v))
		}
		rows = append(rows, row)
	}
	out := fmt.Sprintf("What ibv_post_send takes (%s)\n\n%s\n", p.Grids()[0].Source(), layRows(rows)) +
		"X valid   . not valid   - not posted with ibv_post_send   ? unspecified\n\n"
	rows = [][]string{{"flag", "queue pair types", "opcodes"}}
	for _, f := range p.Flags {
		var types, opcodes []string // those of valid operations
		for i := range p.QPTypes {
			types = append(types, p.half(p.QPTypes[i], f.QPTypes[i], foot, func(op, t int) bool { return t == i }))
		}
		for i := range p.Opcodes {
			opcodes = append(opcodes, p.half(p.Opcodes[i], f.Opcodes[i], foot, func(op, t int) bool { return op == i }))
		}
		name := strings.TrimPrefix(f.Name, "IBV_SEND_")
		if f.Condition != "" {
			name += foot(Validity{Note: f.Condition, Source: p.Page + ","})
		}
		rows = append(rows, []string{name, listHalf(types), listHalf(opcodes)})
	}
	out += layRows(rows) + "\n"
	for i, text := range notes {
		out += fmt.Sprintf("[%d] %s\n", i+1, text)
	}
	return out
}

// layRows lays rows out in columns, without blanks at the end of lines.
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

// half names a queue pair type or an opcode in the rule of a flag: marked where it is not valid, empty where no valid operation
// has it.
func (p *PostSend) half(name string, v Validity, foot func(Validity) string, has func(op, qpt int) bool) string {
	for i, row := range p.Cells {
		for j, cell := range row {
			if cell.Answer != Yes || !has(i, j) {
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
			return short + foot(v)
		}
	}
	return ""
}

// listHalf writes the half of a flag's rule: "all", or what is valid and what is not without saying so twice.
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
