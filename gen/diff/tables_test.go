// SPDX-License-Identifier: BSD-2-Clause

package diff

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

func TestTables(t *testing.T) {
	table := func(columns []string, rows ...model.TableRow) *model.Release {
		return &model.Release{Name: "1", Targets: []string{"amd64"},
			Tables: []model.Table{{Name: "t", Page: "t.3", Columns: columns, Rows: rows}}}
	}
	row := func(name string, cells ...string) model.TableRow { return model.TableRow{Name: name, Cells: cells} }
	flag := func(f model.Flag) *model.Release {
		f.Name, f.Page = "F", "t.3"
		return &model.Release{Name: "1", Targets: []string{"amd64"}, Flags: []model.Flag{f}}
	}
	ab := []string{"A", "B"}
	for _, c := range []struct {
		name     string
		old, new *model.Release
		want     Entry
	}{
		{"row added", table(ab), table(ab, row("W", "yes", "no")),
			Entry{"t.3", Row, "t: W", Added, "", "A yes", Additive, "new"}},
		{"row removed", table(ab, row("W", "no", "yes")), table(ab),
			Entry{"t.3", Row, "t: W", Removed, "B yes", "", Breaking, "gone"}},
		{"column added", table(ab[:1], row("W", "yes")), table(ab, row("W", "yes", "no")),
			Entry{"t.3", Column, "t: B", Added, "", "", Additive, "new"}},
		{"column removed", table(ab, row("W", "yes", "no")), table(ab[:1], row("W", "yes")),
			Entry{"t.3", Column, "t: B", Removed, "", "", Breaking, "gone"}},
		{"no to yes", table(ab, row("W", "no", "no")), table(ab, row("W", "no", "yes")),
			Entry{"t.3", Cell, "t: W, B", Changed, "no", "yes", Additive, "was invalid"}},
		{"yes to no", table(ab, row("W", "yes", "no")), table(ab, row("W", "no", "no")),
			Entry{"t.3", Cell, "t: W, A", Changed, "yes", "no", Breaking, "was valid"}},
		{"other words", table(ab, row("W", "IBV_QP_PORT", "")), table(ab, row("W", "IBV_QP_PORT IBV_QP_AV", "")),
			Entry{"t.3", Cell, "t: W, A", Changed, "IBV_QP_PORT", "IBV_QP_PORT IBV_QP_AV", Breaking,
				"the page changed"}},
		{"nothing to something", table(ab, row("W", "", "")), table(ab, row("W", "IBV_QP_PORT", "")),
			Entry{"t.3", Cell, "t: W, A", Changed, "", "IBV_QP_PORT", Additive, "was invalid"}},
		{"something to nothing", table(ab, row("W", "IBV_QP_PORT", "")), table(ab, row("W", "", "")),
			Entry{"t.3", Cell, "t: W, A", Changed, "IBV_QP_PORT", "", Breaking, "was valid"}},
		{"second row of a name", table(ab, row("W", "no", "no"), row("W", "no", "no")),
			table(ab, row("W", "no", "no"), row("W", "no", "yes")), Entry{"t.3", Cell, "t: W (2), B", Changed, "no",
				"yes", Additive, "was invalid"}},
		{"flag wider", flag(model.Flag{QPTypes: ab[:1]}), flag(model.Flag{QPTypes: ab}),
			Entry{"t.3", FlagRule, "F", Changed, "on A", "on A B", Additive, "valid in more cases"}},
		{"flag narrower", flag(model.Flag{}), flag(model.Flag{QPTypes: ab}),
			Entry{"t.3", FlagRule, "F", Changed, "no limit", "on A B", Breaking, "valid in fewer or other cases"}},
		{"flag without sq_sig_all only", flag(model.Flag{}), flag(model.Flag{SigAll: true}),
			Entry{"t.3", FlagRule, "F", Changed, "no limit", "without sq_sig_all", Breaking,
				"valid in fewer or other cases"}},
		{"flag needs nothing now", flag(model.Flag{Capability: "cap"}), flag(model.Flag{}),
			Entry{"t.3", FlagRule, "F", Changed, "needs cap", "no limit", Additive, "valid in more cases"}},
		{"flag needs another", flag(model.Flag{Capability: "cap"}), flag(model.Flag{Capability: "hat"}),
			Entry{"t.3", FlagRule, "F", Changed, "needs cap", "needs hat", Breaking,
				"valid in fewer or other cases"}},
		{"flag needs more", flag(model.Flag{}), flag(model.Flag{Capability: "cap"}),
			Entry{"t.3", FlagRule, "F", Changed, "no limit", "needs cap", Breaking,
				"valid in fewer or other cases"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Compare(modelOnly(c.old), modelOnly(c.new), NoJudgements())
			assert.Equal(t, []Entry{c.want}, r.Entries)
			assert.Equal(t, c.want.Verdict, r.Verdict)
			assert.Empty(t, Compare(modelOnly(c.old), modelOnly(c.old), NoJudgements()).Entries)
		})
	}
	t.Run("one flag on two pages", func(t *testing.T) {
		bothFlags := flag(model.Flag{QPTypes: ab})
		bothFlags.Flags = append(bothFlags.Flags, model.Flag{Name: "F", Page: "u.3"})
		assert.Empty(t, Compare(modelOnly(bothFlags), modelOnly(bothFlags), NoJudgements()).Entries)
	})
	t.Run("without pages", func(t *testing.T) {
		r := Compare(modelOnly(table(ab, row("W", "yes", "no"))),
			modelOnly(&model.Release{Name: "2", Targets: []string{"amd64"}}), NoJudgements())
		assert.Empty(t, r.Entries)
		assert.Equal(t, []string{"2 was read without man pages: tables are not compared"}, r.Notes)
	})
}

// TestGrids changes one cell of a generated table.
func TestGrids(t *testing.T) {
	grid := func(row string) Generation {
		r := fromC(t, "1.0", "enum t_place { T_HOME, T_AWAY, T_MOON };\nenum t_act { T_EAT = 1, T_SLEEP = 2 };")
		return planned(t, r, `@ package  ibv
@ question What may be done where?
@ func     May | reports whether it may.
@ result   Rule | is a result of May.
@ dim      place | place | enum t_place
@ value    Needs | mask t_act | what is needed
= why | the reason | the source
= when able | the reason | the source | the device is able
T_HOME | yes | none | why
T_MOON | capability | none | when able
`+row)
	}
	const yes, no, unspecified, silent = "T_AWAY | yes | T_EAT | why", "T_AWAY | no | | why", "T_AWAY | unspecified " +
		"| | why", ""
	const more, when, capability = "T_AWAY | yes | T_EAT, T_SLEEP | why", "T_AWAY | yes | T_EAT | when able",
		"T_AWAY | capability | T_EAT | when able"
	for _, c := range []struct {
		name, old, new string
		verdict        Verdict
		reason         string
	}{
		{"no longer valid", yes, no, Breaking, "was valid"},
		{"no longer answered", yes, silent, Breaking, "was valid; no longer specified by any source"},
		{"capability no longer valid", capability, unspecified, Breaking, "was valid"},
		{"now needs a capability", yes, capability, Breaking, "the answer differs"},
		{"now under a condition", yes, when, Breaking, "the answer differs"},
		{"other values", yes, more, Breaking, "the answer differs"},
		{"no condition and other values", when, more, Breaking, "the answer differs"},
		{"condition gone", when, yes, Additive, "valid without a condition"},
		{"capability for all", capability, yes, Additive, "valid without a condition"},
		{"now valid", no, yes, Additive, "was invalid"},
		{"now with a capability", no, capability, Additive, "was invalid"},
		{"no is open again", no, silent, Additive, "was invalid; no longer specified by any source"},
		{"answered at last", silent, yes, Additive, "was unspecified"},
		{"answered with no", unspecified, no, Additive, "was unspecified"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Compare(grid(c.old), grid(c.new), NoJudgements())
			require.Len(t, r.Entries, 1)
			e := r.Entries[0]
			assert.Equal(t, Entry{"table acts", Cell, "acts: T_AWAY", Changed, e.Old, e.New, c.verdict, c.reason}, e)
			assert.NotEqual(t, e.Old, e.New)
			assert.Equal(t, c.verdict, r.Verdict)
			assert.Empty(t, Compare(grid(c.old), grid(c.old), NoJudgements()).Entries)
		})
	}
	one := grid(yes)
	assert.Equal(t, "yes; Needs = T_EAT", answer(one.Grids[0], one.Grids[0].At("T_AWAY")))
	none := Generation{Release: one.Release, Go: API{}}
	for _, pair := range [][2]Generation{{one, none}, {none, one}} {
		r := Compare(pair[0], pair[1], NoJudgements())
		assert.Empty(t, r.Entries)
		assert.Equal(t, []string{"1.0: the current rows produce no table acts; the table is not compared"}, r.Notes)
	}
}

// TestUnplanned checks that a cell of a page that no rule can parse is reported as such, not as a table that does not
// apply.
func TestUnplanned(t *testing.T) {
	all, _ := recorded(t)
	old := all.Find("65.0")[0]
	changed, _ := recorded(t)
	new := changed.Find("65.0")[0]
	for i := range new.Tables {
		if new.Tables[i].Name == "wr_post" {
			new.Tables[i].Rows[0].Cells[1] = "QUANTUM"
		}
	}
	j, err := DefaultJudgements()
	require.NoError(t, err)
	r := Compare(Planned(old, API{}), Planned(new, API{}), j)
	for _, table := range []string{"wr_post", "wr_flags"} {
		assert.Contains(t, strings.Join(r.Notes, "\n"),
			"table "+table+" cannot be built for "+new.Name+` and is not compared: model of `+new.Name+
				`: ibv_wr_post.3: unknown queue pair type "QUANTUM"`)
	}
	assert.NotContains(t, strings.Join(r.Notes, "\n"), "lacks the subject")
}
