// SPDX-License-Identifier: BSD-2-Clause

package results

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// transition is a measured result of ibv_modify_qp.
type transition struct {
	qp, from, to, attributes, answer string
}

// expected reports whether the transition table allows it.
func (x transition) expected() bool {
	rule := ibv.ModifyQP(number[ibv.QPType](x.qp, "IBV_QPT_"), number[ibv.QPState](x.from, "IBV_QPS_"),
		number[ibv.QPState](x.to, "IBV_QPS_"))
	return rule.Answer == ibv.AnswerYes && !strings.HasPrefix(x.attributes, "without ")
}

func transitions(kernel string) ([]transition, error) {
	table, ok, err := Read("modify_qp-"+kernel+".csv", 4)
	if err != nil || !ok {
		return nil, err
	}
	var all []transition
	for _, row := range table.Rows {
		all = append(all, transition{row[0], row[1], row[2], row[3], row[4]})
	}
	return all, nil
}

// reportTransitions reports results of ibv_modify_qp that differ from its table.
func reportTransitions(b *strings.Builder) error {
	type found struct {
		transition
		kernels []string
	}
	var all []*found
	measured := 0
	for _, kernel := range Kernels {
		rows, err := transitions(kernel)
		if err != nil {
			return err
		}
		measured = len(rows)
		for _, x := range rows {
			if x.expected() == (x.answer == "0") {
				continue
			}
			i := slices.IndexFunc(all, func(f *found) bool { return f.transition == x })
			if i < 0 {
				i = len(all)
				all = append(all, &found{transition: x})
			}
			all[i].kernels = append(all[i].kernels, kernel)
		}
	}
	fmt.Fprintf(b,
		"\n## ibv_modify_qp\n\n%d calls on each kernel: every transition with the attributes that it requires, "+
			"without each of them, and with each optional attribute.\n"+
			"All answers agree with the table of transitions, except these:\n\n", measured)
	for _, f := range all {
		answer := "rejects"
		if f.expected() {
			answer = "allows"
		}
		fmt.Fprintf(b, "- %s, %s to %s, %s: %s (%s); the table %s it\n", f.qp, f.from, f.to, f.attributes, f.answer,
			strings.Join(f.kernels, ", "), answer)
	}
	return nil
}

// reportRows writes a table whose first keys columns identify a row, with one row for each distinct result.
func reportRows(b *strings.Builder, title, file string, keys int) error {
	type row struct {
		cells   []string
		kernels []string
	}
	var columns []string
	var all []*row
	for _, kernel := range Kernels {
		table, ok, err := Read(file+"-"+kernel+".csv", keys)
		if err != nil || !ok {
			return err
		}
		columns = table.Columns
		for at, cells := range table.Rows {
			i := slices.IndexFunc(all, func(r *row) bool { return slices.Equal(r.cells, cells) })
			if i < 0 {
				after := slices.IndexFunc(all, func(r *row) bool { return slices.Equal(r.cells[:keys], cells[:keys]) })
				if i = after + 1; after < 0 {
					i = min(at, len(all))
				}
				all = slices.Insert(all, i, &row{cells: cells})
			}
			all[i].kernels = append(all[i].kernels, kernel)
		}
	}
	fmt.Fprintf(b, "\n## %s\n\n| %s | kernels |\n%s|\n", title, strings.Join(columns, " | "),
		strings.Repeat("|---", len(columns)+1))
	for _, r := range all {
		fmt.Fprintf(b, "| %s | %s |\n", strings.Join(r.cells, " | "), strings.Join(r.kernels, ", "))
	}
	return nil
}
