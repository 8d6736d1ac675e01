// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// wrPostSetters maps the words of the man page to setters. DATA means any one of its setters. The inline setters apply
// only to "SEND and RDMA_WRITE", the opcodes for which ibv_post_send accepts inline data.
var wrPostSetters = struct{ data, inline, ud, xrc []string }{
	data:   []string{"ibv_wr_set_sge", "ibv_wr_set_sge_list"},
	inline: []string{"ibv_wr_set_inline_data", "ibv_wr_set_inline_data_list"},
	ud:     []string{"ibv_wr_set_ud_addr"},
	xrc:    []string{"ibv_wr_set_xrc_srqn"},
}

// wrPostBase fills in the cells from the man page's table: operation by queue pair type, with the setters.
func wrPostBase(r *model.Release, f *GridFile, g *Grid, _ gridSet) error {
	t, err := modelTable(r, "wr_post")
	if err != nil {
		return err
	}
	if !slices.Equal(t.Columns, []string{"builder", "qp_types", "setters"}) {
		return fmt.Errorf("model of %s: %s: table wr_post has the columns %q", r.Name, t.Page, t.Columns)
	}
	named := wrPostTypes(f, t) // a type in no row is unspecified
	for _, name := range named {
		if !slices.Contains(g.Dims[0].Names, "IBV_QPT_"+name) {
			return fmt.Errorf("model of %s: %s: unknown queue pair type %q; add a @ reads line to %s", r.Name, t.Page,
				name, f.path())
		}
	}
	for _, row := range t.Rows {
		opcode := "IBV_WR_" + row.Name
		types, notes := f.words(row.Cells[1])
		setters, setterNotes := f.words(row.Cells[2])
		for _, name := range named {
			cell := g.At("IBV_QPT_"+name, opcode)
			if cell == nil {
				return fmt.Errorf("model of %s: %s: unknown opcode %s", r.Name, t.Page, row.Name)
			}
			if !slices.Contains(types, name) {
				cell.Validity = Validity{Answer: No,
					Reason: fmt.Sprintf("the table of builders lists %s for %s only", row.Cells[0],
						strings.Join(types, ", ")), Source: g.Source(), Note: notes[""]}
				continue
			}
			cell.Validity = Validity{Answer: Yes, Reason: "the table of builders lists it", Source: g.Source(),
				Note: joinNotes(notes[name], setterNotes[""])}
			data, address, err := wrPostCalls(name, opcode, setters)
			if err != nil {
				return fmt.Errorf("model of %s: %s: %s: %w; add a @ reads line to %s", r.Name, t.Page, row.Name, err,
					f.path())
			}
			cell.Values[g.value("Data")], cell.Values[g.value("Address")] = data, address
		}
	}
	return nil
}

// wrPostTypes returns the queue pair types that the man page names.
func wrPostTypes(f *GridFile, t *model.Table) []string {
	var all []string
	for _, row := range t.Rows {
		types, _ := f.words(row.Cells[1])
		for _, name := range types {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// wrPostCalls returns the setters of an operation on a queue pair type.
func wrPostCalls(qpt, opcode string, words []string) (data, address Value, err error) {
	data, address = Value{}, Value{}
	for _, w := range words {
		switch {
		case w == "DATA":
			data = append(data, wrPostSetters.data...)
			if slices.Contains(inlineOpcodes, opcode) {
				data = append(data, wrPostSetters.inline...)
			}
		case w == "QP" && qpt == "UD":
			address = append(address, wrPostSetters.ud...)
		case w == "QP" && qpt == "XRC_SEND":
			address = append(address, wrPostSetters.xrc...)
		case w == "QP" || w == "NONE":
		default:
			return nil, nil, fmt.Errorf("unknown setters %q", w)
		}
	}
	return data, address, nil
}

var inlineOpcodes = []string{"IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_SEND_WITH_INV", "IBV_WR_RDMA_WRITE",
	"IBV_WR_RDMA_WRITE_WITH_IMM"}

// wrFlagsBase returns the flags that wr_flags may hold for each cell of wr_post: those listed in the man page of the
// builders, limited by the rules in the man page of ibv_post_send.
func wrFlagsBase(r *model.Release, _ *GridFile, g *Grid, others gridSet) error {
	t, err := modelTable(r, "wr_flags")
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, row := range t.Rows {
		listed[row.Name] = true
		if !slices.Contains(g.Dims[2].Names, row.Name) {
			return fmt.Errorf("model of %s: %s: send flag %s is not in the headers", r.Name, t.Page, row.Name)
		}
	}
	wr := others["wr_post"]
	for n := range g.Cells {
		names := g.Combination(n)
		v := wr.At(names[0], names[1]).Validity
		if v.Answer == Yes || v.Answer == Capability {
			v = wrFlag(r, wr, others, names, listed[names[2]])
		}
		g.Cells[n].Validity = v
	}
	return nil
}

// wrFlag returns the answer for a queue pair type, an opcode and a flag, if the operation itself is valid.
func wrFlag(r *model.Release, wr *Grid, others gridSet, names []string, listed bool) Validity {
	flag := names[2]
	switch {
	case !listed && flag == "IBV_SEND_INLINE":
		return Validity{Answer: Elsewhere, Reason: "inline data is posted with ibv_wr_set_inline_data and " +
			"ibv_wr_set_inline_data_list, not by a flag", Source: wr.Source()}
	case !listed:
		return Validity{Answer: Unspecified, Reason: "the page does not list the flag for wr_flags",
			Source: wr.Source()}
	}
	decides, halves := flagHalves(others, names[0], names[1], flag)
	if decides != nil {
		decides.Note = joinNotes(decides.Note,
			wr.Source()+" lists the flag without limits; those of ibv_post_send are assumed")
		return *decides
	}
	v := Validity{
		Answer: Yes, Condition: joinNotes(flagCondition(r, flag), halves[0].Condition, halves[1].Condition),
		Reason: "the page lists the flag for wr_flags", Source: wr.Source(), Note: joinNotes(halves[0].Note,
			halves[1].Note),
	}
	for _, half := range halves {
		if half.Reason != "" {
			v.Reason, v.Source = joinNotes(v.Reason, half.Reason), joinNotes(v.Source, half.Source)
		}
	}
	return v
}
