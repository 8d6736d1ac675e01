// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// documented returns a small table of the operations that ibv_post_send accepts.
func documented() *Grid {
	cell := func(a Answer) Cell { return Cell{Validity: Validity{Answer: a, Reason: "why", Source: "p.3"}} }
	return &Grid{
		Name: "post_send", Package: "ibv", Release: "9.0", Func: "PostSendValidity", Pages: []string{"p.3"},
		Dims: []Dim{
			{Param: "qpt", What: "queue pair type", Type: "enum ibv_qp_type",
				Names: []string{"IBV_QPT_RC", "IBV_QPT_UD", "IBV_QPT_NEW"}},
			{Param: "op", What: "opcode", Type: "enum ibv_wr_opcode", Names: []string{"IBV_WR_SEND", "IBV_WR_READ"}},
		},
		Cells: []Cell{cell(Yes), cell(Capability), cell(Yes), cell(No), cell(Unspecified), cell(Elsewhere)},
	}
}

func measured(t *testing.T, name, rows string) *model.Measured {
	t.Helper()
	table := strings.TrimSuffix(name[strings.LastIndexByte(name, '-')+1:], ".csv")
	m, err := model.ParseMeasured(name,
		[]byte("# a device\n"+strings.Join(model.MeasuredColumns[table], ",")+"\n"+rows))
	require.NoError(t, err)
	return m
}

const (
	sendWorks = "RC,SEND,none,0,none,RTS,ok\nRC,SEND,SIGNALED,0,SUCCESS,RTS,ok\n"
	readFails = "RC,READ,none,0,LOC_QP_OP_ERR,ERR,none\nRC,READ,SIGNALED,0,WR_FLUSH_ERR,ERR,none\n"
	udSend    = "UD,SEND,none,EINVAL,none,RTS,-\nUD,SEND,SIGNALED,EINVAL,none,RTS,-\n"
	udRead    = "UD,READ,none,0,none,RTS,-\nUD,READ,SIGNALED,0,SUCCESS,RTS,-\n"
	whyRows   = `= why | a limit | a file
post_send | dev 6.1 | IBV_QPT_RC | IBV_WR_READ | fails | why
post_send | dev 6.1 | IBV_QPT_UD | IBV_WR_SEND | fails | why
post_send | dev 6.1 | IBV_QPT_UD | IBV_WR_READ | works | why
`
)

func measuredGrids(t *testing.T, rows string, all ...*model.Measured) ([]*Grid, error) {
	t.Helper()
	parsed, err := ParseDisagreements("rows.txt", rows)
	if err != nil {
		return nil, err
	}
	return MeasuredGrids(all, parsed, []*Grid{documented()})
}

func TestMeasured(t *testing.T) {
	grids, err := measuredGrids(t, whyRows,
		measured(t, "dev-6.12-create_qp.csv", "NEW,EOPNOTSUPP\nRC,0\n"),
		measured(t, "dev-6.1-post_send.csv", sendWorks+readFails+udSend+udRead))
	require.NoError(t, err)
	require.Len(t, grids, 1)
	g := grids[0]
	assert.Equal(t, []string{"dev 6.1", "dev 6.12"}, g.Dims[0].Names)
	assert.Equal(t, []string{"PostSendMeasured", "PostSendResult", "Measurement", "MeasuredDEV_6_1",
		"MeasuredDEV_6_12"}, g.goNames())
	assert.Subset(t, measuredNames([]*model.Measured{{Provider: "dev", Kernel: "6.1"},
		{Provider: "dev", Kernel: "6.12"}}), g.goNames(), "reserved names")
	source := "measured: a device"
	limit := "; the reason: a limit (a file)"
	for _, c := range []struct {
		at   [3]string
		want Cell
	}{
		{[3]string{"dev 6.1", "IBV_QPT_RC", "IBV_WR_SEND"},
			Cell{Validity{Answer: Yes, Reason: "it works, signaled and without flags", Source: source},
				[]Value{{}, {"IBV_WC_SUCCESS"}}}},
		{[3]string{"dev 6.1", "IBV_QPT_RC", "IBV_WR_READ"},
			Cell{Validity{Answer: No, Reason: "signaled, it completes with IBV_WC_WR_FLUSH_ERR", Source: source,
				Note: "p.3 says capability: why" + limit}, []Value{{}, {"IBV_WC_WR_FLUSH_ERR"}}}},
		{[3]string{"dev 6.1", "IBV_QPT_UD", "IBV_WR_SEND"},
			Cell{Validity{Answer: No, Reason: "signaled, posting gives EINVAL", Source: source,
				Note: "p.3 says yes: why" + limit}, []Value{{"post EINVAL"}, {}}}},
		{[3]string{"dev 6.1", "IBV_QPT_UD", "IBV_WR_READ"},
			Cell{Validity{Answer: Yes, Reason: "it works, signaled and without flags", Source: source,
				Note: "p.3 says no: why" + limit}, []Value{{}, {"IBV_WC_SUCCESS"}}}},
		{[3]string{"dev 6.1", "IBV_QPT_NEW", "IBV_WR_SEND"},
			Cell{Validity{Answer: Unspecified, Reason: "it was not measured", Source: source}, []Value{nil, nil}}},
		{[3]string{"dev 6.12", "IBV_QPT_RC", "IBV_WR_SEND"},
			Cell{Validity{Answer: Unspecified, Reason: "it was not measured", Source: source}, []Value{nil, nil}}},
		{[3]string{"dev 6.12", "IBV_QPT_NEW", "IBV_WR_READ"},
			Cell{Validity{Answer: No, Reason: "no such queue pair can be created: EOPNOTSUPP", Source: source},
				[]Value{{"create EOPNOTSUPP"}, {}}}},
	} {
		assert.Equal(t, c.want, *g.At(c.at[:]...), c.at)
	}
	grids, err = measuredGrids(t, "", measured(t, "dev-6.12-create_qp.csv", "RC,0\n"),
		measured(t, "dev-6.9-create_qp.csv", "RC,0\n"), measured(t, "abc-7-create_qp.csv", "RC,0\n"))
	require.NoError(t, err)
	assert.Equal(t, []string{"abc 7", "dev 6.9", "dev 6.12"}, grids[0].Dims[0].Names)
	none, err := MeasuredGrids(nil, nil, []*Grid{documented()})
	require.NoError(t, err)
	assert.Empty(t, none)
}

// TestMeasuredOutcomes checks which outcomes count as working. If one of the two rows of an operation failed, the
// operation failed.
func TestMeasuredOutcomes(t *testing.T) {
	for name, c := range map[string]struct{ rows, want string }{
		"fails without flags": {"UD,READ,none,0,WR_FLUSH_ERR,ERR,none\nUD,READ,SIGNALED,0,SUCCESS,RTS,ok\n",
			"without flags, it completes with IBV_WC_WR_FLUSH_ERR"},
		"fails signaled": {"UD,READ,none,0,none,RTS,ok\nUD,READ,SIGNALED,0,WR_FLUSH_ERR,ERR,none\n",
			"signaled, it completes with IBV_WC_WR_FLUSH_ERR"},
		"wrong data": {"UD,READ,none,0,none,RTS,ok\nUD,READ,SIGNALED,0,SUCCESS,RTS,wrong\n",
			"signaled, it completes with IBV_WC_SUCCESS, the data is wrong and the queue pair in RTS"},
		"broken queue pair": {"UD,READ,none,0,none,RTS,ok\nUD,READ,SIGNALED,0,SUCCESS,ERR,ok\n",
			"signaled, it completes with IBV_WC_SUCCESS, the data is ok and the queue pair in ERR"},
		"nothing": {"UD,READ,none,0,none,RTS,ok\nUD,READ,SIGNALED,0,none,RTS,ok\n",
			"signaled, it completes with nothing"},
		"nothing without flag": {"UD,READ,none,0,none,RTS,wrong\nUD,READ,SIGNALED,0,SUCCESS,RTS,ok\n",
			"without flags, it completes with nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			grids, err := measuredGrids(t, "", measured(t, "dev-6.1-post_send.csv", c.rows))
			require.NoError(t, err)
			cell := grids[0].At("dev 6.1", "IBV_QPT_UD", "IBV_WR_READ")
			assert.Equal(t, No, cell.Answer)
			assert.Equal(t, c.want, cell.Reason)
		})
	}
	m := measured(t, "dev-6.1-wr_post.csv", "UC,READ,none,EOPNOTSUPP,-,-,-,-\nUC,READ,SIGNALED,EOPNOTSUPP,-,-,-,-\n")
	assert.Equal(t, &outcome{refused: "create EOPNOTSUPP", reason: "no queue pair can be created for it: EOPNOTSUPP"},
		outcomeOf(m, m.Rows[1]))
}

// TestMeasuredFlags checks that the table of send flags is compared with the measured rows that have the flag, provided
// that the operation works without it.
func TestMeasuredFlags(t *testing.T) {
	flags := *documented()
	flags.Name, flags.Func = "send_flags", "SendFlagValidity"
	flags.Dims = append(flags.Dims,
		Dim{Param: "flag", What: "send flag", Type: "enum ibv_send_flags",
			Names: []string{"IBV_SEND_FENCE", "IBV_SEND_INLINE"}})
	flags.Cells = nil
	for range 12 {
		flags.Cells = append(flags.Cells, Cell{Validity: Validity{Answer: No, Reason: "why", Source: "p.3"}})
	}
	grids := func(rows string) ([]*Grid, error) {
		parsed, err := ParseDisagreements("rows.txt", rows)
		require.NoError(t, err)
		return MeasuredGrids([]*model.Measured{measured(t, "dev-6.1-post_send.csv",
			sendWorks+"RC,SEND,SIGNALED|FENCE,0,SUCCESS,RTS,ok\nRC,SEND,SIGNALED|INLINE,0,LOC_PROT_ERR,ERR,none\n"+
				readFails+"RC,READ,SIGNALED|FENCE,0,SUCCESS,RTS,ok\n")}, parsed, []*Grid{&flags})
	}
	_, err := grids("")
	require.EqualError(t, err, "gen/rules/measured.txt: send_flags: dev 6.1 × IBV_QPT_RC × IBV_WR_SEND × "+
		"IBV_SEND_FENCE: p.3 says no, but it works (it works with SIGNALED|FENCE); "+
		"add a row with the reason: send_flags | dev 6.1 | IBV_QPT_RC | IBV_WR_SEND | IBV_SEND_FENCE | works | label")
	row := "= why | a limit | a file\nsend_flags | dev 6.1 | IBV_QPT_RC | IBV_WR_SEND | IBV_SEND_FENCE | works | why\n"
	all, err := grids(row)
	require.NoError(t, err)
	require.Len(t, all, 1)
	for cell, want := range map[[4]string]Validity{
		{"dev 6.1", "IBV_QPT_RC", "IBV_WR_SEND", "IBV_SEND_FENCE"}: {Answer: Yes,
			Reason: "it works with SIGNALED|FENCE", Source: "measured: a device", Note: "p.3 says no: why; the " +
				"reason: a limit (a file)"},
		{"dev 6.1", "IBV_QPT_RC", "IBV_WR_SEND", "IBV_SEND_INLINE"}: {Answer: No,
			Reason: "with SIGNALED|INLINE, it completes with IBV_WC_LOC_PROT_ERR", Source: "measured: a device"},
		{"dev 6.1", "IBV_QPT_RC", "IBV_WR_READ", "IBV_SEND_FENCE"}: {Answer: Unspecified,
			Reason: "the operation itself does not work", Source: "measured: a device"},
		{"dev 6.1", "IBV_QPT_UD", "IBV_WR_SEND", "IBV_SEND_FENCE"}: {Answer: Unspecified,
			Reason: "it was not measured", Source: "measured: a device"},
	} {
		assert.Equal(t, want, all[0].At(cell[:]...).Validity, cell)
	}
	_, err = grids(row + "send_flags | dev 6.1 | IBV_QPT_RC | IBV_WR_READ | IBV_SEND_FENCE | works | why\n")
	assert.ErrorContains(t, err, "rows.txt:3: stale row: send_flags: dev 6.1 × IBV_QPT_RC × IBV_WR_READ × "+
		"IBV_SEND_FENCE: the operation itself does not work; delete it")
	_, err = grids(row + "send_flags | dev 6.1 | IBV_QPT_RC | IBV_WR_SEND | works | why\n")
	assert.ErrorContains(t, err, "rows.txt:3: send_flags: 3 columns of names, want 4")
}

func TestMeasuredRejected(t *testing.T) {
	rows := sendWorks + readFails + udSend + udRead
	for name, c := range map[string]struct{ rows, measured, want string }{
		"missing row": {strings.Replace(whyRows, "post_send | dev 6.1 | IBV_QPT_RC | IBV_WR_READ | fails | why\n", "",
			1), rows,
			"gen/rules/measured.txt: post_send: dev 6.1 × IBV_QPT_RC × IBV_WR_READ: p.3 says capability, but it " +
				"fails (signaled, it completes with IBV_WC_WR_FLUSH_ERR); add a row with the reason: post_send | dev " +
				"6.1 | IBV_QPT_RC | IBV_WR_READ | fails | label"},
		"missing row, works": {strings.Replace(whyRows,
			"post_send | dev 6.1 | IBV_QPT_UD | IBV_WR_READ | works | why\n", "", 1), rows,
			"p.3 says no, but it works"},
		"not in this verb": {whyRows, rows + "NEW,READ,none,0,none,RTS,ok\nNEW,READ,SIGNALED,0,SUCCESS,RTS,ok\n",
			"post_send: dev 6.1 × IBV_QPT_NEW × IBV_WR_READ: p.3 says elsewhere, but it works"},
		"stale row": {whyRows + "post_send | dev 6.1 | IBV_QPT_RC | IBV_WR_SEND | works | why\n", rows,
			"rows.txt:5: stale row: post_send: dev 6.1 × IBV_QPT_RC × IBV_WR_SEND: p.3 says yes, and it works, so " +
				"there is no disagreement; delete it"},
		"not measured": {whyRows, sendWorks + readFails + udSend,
			"rows.txt:4: stale row: post_send: dev 6.1 × IBV_QPT_UD × IBV_WR_READ: it was not measured; delete it"},
		"other statement": {strings.Replace(whyRows, "IBV_WR_READ | fails", "IBV_WR_READ | works", 1), rows,
			"rows.txt:2: post_send: dev 6.1 × IBV_QPT_RC × IBV_WR_READ: the row is wrong: it fails"},
		"unknown kernel": {whyRows + "post_send | dev 9.9 | IBV_QPT_RC | IBV_WR_READ | fails | why\n", rows,
			"rows.txt:5: dev 9.9 was not measured; headers/measured has dev 6.1"},
		"unknown type": {whyRows + "post_send | dev 6.1 | IBV_QPT_OLD | IBV_WR_READ | fails | why\n", rows,
			"rows.txt:5: 9.0 has no queue pair type IBV_QPT_OLD"},
		"wildcard": {whyRows + "post_send | dev 6.1 | IBV_QPT_RC | * | fails | why\n", rows,
			"rows.txt:5: 9.0 has no opcode *"},
		"unknown table": {whyRows + "modify_qp | dev 6.1 | IBV_QPT_RC | IBV_WR_READ | fails | why\n", rows,
			"rows.txt:5: table modify_qp is not measured"},
		"row twice": {whyRows + "post_send | dev 6.1 | IBV_QPT_UD, IBV_QPT_RC | IBV_WR_READ | fails | why\n",
			rows, "rows.txt:5: duplicate post_send: dev 6.1 × IBV_QPT_UD × IBV_WR_READ, first at rows.txt:4"},
		"statement": {strings.Replace(whyRows, "works", "maybe", 1), rows,
			`rows.txt:4: unknown statement "maybe"; want works or fails`},
		"columns": {whyRows + "post_send | dev 6.1 | IBV_QPT_RC | IBV_WR_READ | why\n", rows,
			"rows.txt:5: 5 columns; want table | measurements"},
		"label": {"= other | a limit | a file | a condition\n" + whyRows, rows,
			"rows.txt:1: want = label | reason | source"},
		"no label": {strings.Replace(whyRows, "works | why", "works | because", 1), rows,
			`rows.txt:4: unknown label "because"`},
		"unused label": {"= other | a limit | a file\n" + whyRows, rows,
			`rows.txt:1: no row uses label "other"; delete it`},
		"measured type": {whyRows, rows + "OLD,SEND,none,0,none,RTS,ok\nOLD,SEND,SIGNALED,0,none,RTS,ok\n",
			"headers/measured/dev-6.1-post_send.csv: 9.0 has no queue pair type IBV_QPT_OLD"},
		"measured opcode": {whyRows, rows + "RC,OLD,none,0,none,RTS,ok\nRC,OLD,SIGNALED,0,none,RTS,ok\n",
			"headers/measured/dev-6.1-post_send.csv: 9.0 has no opcode IBV_WR_OLD"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := measuredGrids(t, c.rows, measured(t, "dev-6.1-post_send.csv", c.measured))
			require.ErrorContains(t, err, c.want)
		})
	}
	other := measured(t, "dev-6.1-create_qp.csv", "RC,0\n")
	other.Source = "another device"
	_, err := measuredGrids(t, whyRows, other, measured(t, "dev-6.1-post_send.csv", rows))
	assert.ErrorContains(t, err,
		"headers/measured: dev 6.1 was measured on both another device and a device; measure all of its tables on "+
			"one system")
	_, err = measuredGrids(t, whyRows)
	assert.ErrorContains(t, err, "rows.txt:2: dev 6.1 was not measured", "rows are stale when nothing is measured")
}
