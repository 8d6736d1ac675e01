// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// postSendBase fills in the cells from the man page's table: opcode by queue pair type.
func postSendBase(r *model.Release, f *GridFile, g *Grid, _ gridSet) error {
	t, err := modelTable(r, "post_send")
	if err != nil {
		return err
	}
	for _, row := range t.Rows {
		var valid []string
		for i, cell := range row.Cells {
			switch cell {
			case string(Yes):
				valid = append(valid, t.Columns[i])
			case string(No):
			default:
				return fmt.Errorf("model of %s: %s: %s has a cell %q, neither yes nor no", r.Name, t.Page, row.Name,
					cell)
			}
		}
		reason := fmt.Sprintf("the table of opcodes lists %s for %s only", row.Name, strings.Join(valid, ", "))
		if valid == nil {
			reason = fmt.Sprintf("the table of opcodes lists %s for no queue pair type", row.Name)
		}
		for i, qpt := range t.Columns {
			cell := g.At(qpt, row.Name)
			if cell == nil {
				return fmt.Errorf("model of %s: %s: queue pair type %s or opcode %s is not in the headers", r.Name,
					t.Page, qpt, row.Name)
			}
			cell.Validity = Validity{Answer: No, Reason: reason, Source: g.Source()}
			if row.Cells[i] == string(Yes) {
				cell.Validity = Validity{Answer: Yes, Reason: "the table of opcodes lists it", Source: g.Source()}
			}
		}
	}
	return nil
}

// flagRule returns the rule for a send flag in the man page of ibv_post_send, or nil.
func flagRule(r *model.Release, name string) *model.Flag {
	t, err := modelTable(r, "post_send")
	i := slices.IndexFunc(r.Flags, func(f model.Flag) bool { return err == nil && f.Name == name && f.Page == t.Page })
	if i < 0 {
		return nil
	}
	return &r.Flags[i]
}

// flagCondition returns the additional condition of a flag.
func flagCondition(r *model.Release, name string) string {
	condition := ""
	if rule := flagRule(r, name); rule != nil {
		if rule.Capability != "" {
			condition = fmt.Sprintf("%s of the device must report it for the queue pair's type", rule.Capability)
		}
		if rule.SigAll {
			condition = joinNotes(condition,
				"it has an effect only if the queue pair was created with sq_sig_all = 0")
		}
	}
	return condition
}

// flagTypesBase fills in the part of the flags' rules that depends on the queue pair type, flagOpcodesBase the part
// that depends on the opcode.
func flagTypesBase(r *model.Release, f *GridFile, g *Grid, _ gridSet) error {
	return flagHalf(r, f, g, func(rule *model.Flag) []string { return rule.QPTypes })
}

func flagOpcodesBase(r *model.Release, f *GridFile, g *Grid, _ gridSet) error {
	return flagHalf(r, f, g, func(rule *model.Flag) []string { return rule.Opcodes })
}

// flagHalf fills in a table of send flags from the limits in the man page. Without a limit, everything is valid.
func flagHalf(r *model.Release, f *GridFile, g *Grid, limitOf func(*model.Flag) []string) error {
	for _, row := range f.rows {
		if row.answer == Elsewhere || row.answer == Unspecified {
			return fmt.Errorf("%s: a flag's rule is yes or no, not %s", row.at, row.answer)
		}
	}
	t, err := modelTable(r, "post_send")
	if err != nil {
		return err
	}
	flags, others := g.Dims[0], g.Dims[1]
	for i := range r.Flags {
		rule := &r.Flags[i]
		if rule.Page != t.Page {
			continue
		}
		limit := limitOf(rule)
		if !slices.Contains(flags.Names, rule.Name) {
			return fmt.Errorf("model of %s: %s: send flag %s is not in the headers", r.Name, t.Page, rule.Name)
		}
		for _, name := range limit {
			if !slices.Contains(others.Names, name) {
				return fmt.Errorf("model of %s: %s: %s %s is not in the headers", r.Name, t.Page, others.What, name)
			}
		}
		for _, name := range others.Names {
			v := Validity{Answer: Yes, Source: g.Source()}
			if len(limit) > 0 {
				v.Reason = fmt.Sprintf("%s is limited to %s", rule.Name, strings.Join(limit, ", "))
				if !slices.Contains(limit, name) {
					v.Answer = No
				}
			}
			g.At(rule.Name, name).Validity = v
		}
	}
	return nil
}

// flagHalves returns both halves of a flag's rule for an operation, and the half that decides. That half, or both if
// neither decides, counts as shown, so that its rows are not stale.
func flagHalves(others gridSet, qpt, op, flag string) (decides *Validity, halves [2]Validity) {
	types, opcodes := others["send_flag_types"], others["send_flag_opcodes"]
	byType, byOpcode := types.At(flag, qpt), opcodes.At(flag, op)
	halves = [2]Validity{byType.Validity, byOpcode.Validity}
	if byType.Answer != Yes {
		types.shown[byType] = true
		return &halves[0], halves
	}
	opcodes.shown[byOpcode] = true
	if byOpcode.Answer != Yes {
		return &halves[1], halves
	}
	types.shown[byType] = true
	return nil, halves
}

// sendFlagsBase combines the table of operations with the rules of the flags. For an invalid operation, the answer is
// that of the operation.
func sendFlagsBase(r *model.Release, _ *GridFile, g *Grid, others gridSet) error {
	for n := range g.Cells {
		names := g.Combination(n)
		qpt, op, flag := names[0], names[1], names[2]
		v := others["post_send"].At(qpt, op).Validity
		if v.Answer == Yes {
			v = sendFlag(r, g, others, qpt, op, flag)
		}
		g.Cells[n].Validity = v
	}
	return nil
}

// sendFlag combines the halves of a flag's rule for a valid operation: if either half is no, the answer is no.
func sendFlag(r *model.Release, g *Grid, others gridSet, qpt, op, flag string) Validity {
	decides, halves := flagHalves(others, qpt, op, flag)
	if decides != nil {
		return *decides
	}
	v := Validity{Answer: Yes, Condition: flagCondition(r, flag), Note: joinNotes(halves[0].Note, halves[1].Note)}
	for _, half := range halves {
		v.Condition = joinNotes(v.Condition, half.Condition)
		if half.Reason != "" {
			v.Reason = joinNotes(v.Reason, half.Reason)
			if half.Source != v.Source {
				v.Source = joinNotes(v.Source, half.Source)
			}
		}
	}
	if v.Reason == "" {
		v.Reason, v.Source = "the rule of "+flag+" excludes no opcode and no queue pair type", g.Source()
	}
	return v
}
