// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// smallRelease returns a model with two documented queue pair types and opcodes, and an undocumented one of each.
func smallRelease() *model.Release {
	enum := func(tag string, names ...string) model.Enum {
		e := model.Enum{Tag: tag, Size: 4}
		for i, n := range names {
			e.Enumerators = append(e.Enumerators, model.Enumerator{Name: n, Value: model.IntOf(int64(i + 2))})
		}
		return e
	}
	return &model.Release{
		Name: "9.0", Targets: []string{"amd64"},
		Headers: []model.Header{{Name: "v.h", Enums: []model.Enum{
			enum("ibv_qp_type", "IBV_QPT_RC", "IBV_QPT_UD", "IBV_QPT_NEW"),
			enum("ibv_wr_opcode", "IBV_WR_SEND", "IBV_WR_READ", "IBV_WR_NEW"),
			enum("ibv_send_flags", "IBV_SEND_FENCE", "IBV_SEND_INLINE", "IBV_SEND_SIGNALED", "IBV_SEND_NEW"),
		}}},
		Tables: []model.Table{{Name: "post_send", Page: "p.3", Columns: []string{"IBV_QPT_UD", "IBV_QPT_RC"},
			Rows: []model.TableRow{
				{Name: "IBV_WR_SEND", Cells: []string{"yes", "yes"}},
				{Name: "IBV_WR_READ", Cells: []string{"no", "yes"}},
			}}},
		Flags: []model.Flag{
			{Name: "IBV_SEND_FENCE", Page: "p.3", QPTypes: []string{"IBV_QPT_RC"}},
			{Name: "IBV_SEND_INLINE", Page: "p.3", Opcodes: []string{"IBV_WR_SEND"}},
			{Name: "IBV_SEND_SIGNALED", Page: "p.3", SigAll: true, Capability: "caps"},
			{Name: "IBV_ACCESS_OTHER", Page: "q.3"},
		},
	}
}

const (
	label   = "= why | the reason | the source\n"
	postTop = `@ package  ibv
@ question What goes?
@ page     p.3
`
	postDims = `@ dim      qpt | queue pair type | enum ibv_qp_type
@ dim      op | opcode | enum ibv_wr_opcode
`
	flagDim = "@ dim      flag | send flag | flag ibv_send_flags\n"
)

// postFiles returns the tables of ibv_post_send with these rows. The rows start at line 8.
func postFiles(t *testing.T, post, types, opcodes string) ([]*GridFile, error) {
	t.Helper()
	var all []*GridFile
	for _, f := range []struct{ name, text string }{
		{"post_send", postTop + "@ func     PostSendValidity | says.\n" + postDims + "\n" + post},
		{"send_flag_opcodes", postTop + "@ part     send_flags\n" + flagDim +
			"@ dim      op | opcode | enum ibv_wr_opcode\n\n" + opcodes},
		{"send_flag_types", postTop + "@ part     send_flags\n" + flagDim +
			"@ dim      qpt | queue pair type | enum ibv_qp_type\n\n" + types},
		{"send_flags", postTop + "@ func     SendFlagValidity | says.\n@ first    PostSendValidity\n" + postDims +
			flagDim},
	} {
		parsed, err := ParseGrid(f.name+".txt", f.text)
		if err != nil {
			return nil, err
		}
		all = append(all, parsed)
	}
	return all, nil
}

func resolvePost(t *testing.T, r *model.Release, post, types, opcodes string) (map[string]*Grid, []*Grid, error) {
	t.Helper()
	files, err := postFiles(t, post, types, opcodes)
	if err != nil {
		return nil, nil, err
	}
	grids, err := ResolveGrids(r, "ibv", files)
	by := map[string]*Grid{}
	for _, g := range grids {
		by[g.Name] = g
	}
	return by, grids, err
}

func TestPostSend(t *testing.T) {
	by, grids, err := resolvePost(t, smallRelease(), label+`
IBV_QPT_NEW | IBV_WR_SEND | no          | why
IBV_QPT_NEW | IBV_WR_NEW  | elsewhere   | why
IBV_QPT_RC  | IBV_WR_NEW  | unspecified | why
IBV_QPT_RC  | IBV_WR_READ | disputed no | why
IBV_QPT_UD  | IBV_WR_READ | yes         | why
`, label+"IBV_SEND_FENCE | IBV_QPT_UD | yes | why\n", label+"IBV_SEND_INLINE | IBV_WR_READ | reading | why\n")
	require.NoError(t, err)
	page := "p.3, rdma-core 9.0"
	lists := func(s string) string { return "the table of opcodes lists " + s }
	given := Validity{Reason: "the reason", Source: "the source"}
	with := func(v Validity, a Answer, note string) Validity { v.Answer, v.Note = a, note; return v }
	silent := Validity{Answer: Unspecified, Reason: "not specified by any source", Source: page}
	send, flags := by["post_send"], by["send_flags"]
	assert.Equal(t, []string{"IBV_QPT_RC", "IBV_QPT_UD", "IBV_QPT_NEW"}, send.Dims[0].Names)
	var cells []Validity
	for _, op := range send.Dims[1].Names {
		for _, qpt := range send.Dims[0].Names {
			cells = append(cells, send.At(qpt, op).Validity)
		}
	}
	assert.Equal(t, []Validity{
		{Answer: Yes, Reason: lists("it"), Source: page}, {Answer: Yes, Reason: lists("it"), Source: page}, with(given,
			No, ""),
		{Answer: Yes, Reason: lists("it"), Source: page, Note: "another source says no: the reason (the source)"},
		with(given, Yes, page+" says no: "+lists("IBV_WR_READ for IBV_QPT_RC only")),
		silent,
		with(given, Unspecified, ""), silent, with(given, Elsewhere, ""),
	}, cells)

	assert.Equal(t, "PostSendValidity", flags.First)
	assert.False(t, flags.FirstHasValues)
	at := func(qpt, op, flag string) Validity {
		return flags.At("IBV_QPT_"+qpt, "IBV_WR_"+op, "IBV_SEND_"+flag).Validity
	}
	limit := "IBV_SEND_FENCE is limited to IBV_QPT_RC"
	assert.Equal(t, Validity{Answer: Yes, Reason: limit, Source: page}, at("RC", "SEND", "FENCE"))
	assert.Equal(t, with(given, Yes, page+" says no: "+limit), at("UD", "SEND", "FENCE"))
	assert.Equal(t, send.At("IBV_QPT_NEW", "IBV_WR_SEND").Validity, at("NEW", "SEND", "FENCE"),
		"the operation itself is not valid")
	assert.Equal(t, Validity{
		Answer: No, Reason: "IBV_SEND_INLINE is limited to IBV_WR_SEND", Source: page, Note: "the reason (the source)",
	}, at("RC", "READ", "INLINE"))
	assert.Equal(t, Validity{
		Answer: Yes, Reason: "the rule of IBV_SEND_SIGNALED excludes no opcode and no queue pair type", Source: page,
		Condition: "caps of the device must report it for the queue pair's type; it has an effect only if the " +
			"queue pair was created with sq_sig_all = 0",
	}, at("RC", "SEND", "SIGNALED"))
	assert.Equal(t, Yes, at("UD", "READ", "SIGNALED").Answer)
	assert.Equal(t, silent, at("RC", "SEND", "NEW"), "the page does not mention the flag")

	text := RenderPostSend(smallRelease(), grids)
	assert.Contains(t, text, "opcode  RC    UD    NEW\nSEND    X     X     .[1]\nREAD    X[2]  X[3]  ?\nNEW     ?[1] "+
		" ?     -[1]\n")
	assert.Contains(t, text, "FENCE        all, UD[4]        all\nINLINE       all               SEND, not "+
		"READ[1]\nSIGNALED[5]  all               all\nNEW          ?RC, ?UD          ?SEND, ?READ\n")
	assert.Contains(t, text, "[1] the reason (the source)\n[2] another source says no")
	assert.Empty(t, RenderPostSend(smallRelease(), grids[1:]))
}

func TestPostSendRejected(t *testing.T) {
	for name, c := range map[string]struct{ post, types, opcodes, want string }{
		"unknown type": {label + "IBV_QPT_OLD | IBV_WR_SEND | no | why\n", "", "",
			"post_send.txt:9: unknown queue pair type IBV_QPT_OLD"},
		"unknown opcode": {label + "IBV_QPT_RC | IBV_WR_OLD | no | why\n", "", "",
			"post_send.txt:9: unknown opcode IBV_WR_OLD"},
		"opcode first": {label + "IBV_WR_SEND | IBV_QPT_RC | no | why\n", "", "",
			"post_send.txt:9: unknown queue pair type IBV_WR_SEND"},
		"page agrees": {label + "IBV_QPT_UD | IBV_WR_READ | no | why\n", "", "",
			"post_send.txt:9: stale row: p.3, rdma-core 9.0 already says no"},
		"page has an answer": {label + "IBV_QPT_UD | IBV_WR_READ | unspecified | why\n", "", "",
			"post_send.txt:9: p.3, rdma-core 9.0 says no about IBV_QPT_UD × IBV_WR_READ"},
		"unknown flag": {"", label + "IBV_SEND_OLD | IBV_QPT_RC | no | why\n", "",
			"send_flag_types.txt:9: unknown send flag IBV_SEND_OLD"},
		"flag of nothing": {"", "", label + "IBV_SEND_FENCE | IBV_WR_OLD | no | why\n",
			"send_flag_opcodes.txt:9: unknown opcode IBV_WR_OLD"},
		"flag elsewhere": {"", label + "IBV_SEND_FENCE | IBV_QPT_RC | elsewhere | why\n", "",
			"send_flag_types.txt:9: a flag's rule is yes or no, not elsewhere"},
		"flag unspecified": {"", "", label + "IBV_SEND_FENCE | IBV_WR_SEND | unspecified | why\n",
			"send_flag_opcodes.txt:9: a flag's rule is yes or no"},
		"flag agrees": {"", label + "IBV_SEND_INLINE | IBV_QPT_UD | yes | why\n", "",
			"send_flag_types.txt:9: stale row: p.3, rdma-core 9.0 already says yes"},
		"flag without effect": {"", label + "IBV_SEND_INLINE | IBV_QPT_NEW | no | why\n", "",
			"send_flag_types.txt:9: stale row: it has no effect on IBV_SEND_INLINE × IBV_QPT_NEW"},
		"flag hidden by another": {"", "", label + "IBV_SEND_INLINE | IBV_WR_NEW | reading | why\n",
			"send_flag_opcodes.txt:9: stale row: it has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := resolvePost(t, smallRelease(), c.post, c.types, c.opcodes)
			require.ErrorContains(t, err, c.want)
		})
	}
	files, err := postFiles(t, "", "", "")
	require.NoError(t, err)
	files[3].First = "Nothing"
	_, err = ResolveGrids(smallRelease(), "ibv", files)
	require.ErrorContains(t, err,
		"gen/rules/tables/send_flags.txt: @ first Nothing is not a lookup of all dimensions but the last")
}

func TestPostSendRejectsModel(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*model.Release)
		want   string
	}{
		"no table": {func(r *model.Release) { r.Tables[0].Name = "other" },
			"model of 9.0: it has no table post_send"},
		"no enum": {func(r *model.Release) { r.Headers[0].Enums[0].Tag = "x" },
			"it has no enum ibv_qp_type"},
		"repeated value": {func(r *model.Release) { r.Headers[0].Enums[1].Enumerators[1].Value = "2" },
			"IBV_WR_READ repeats the value of IBV_WR_SEND"},
		"unknown column": {func(r *model.Release) { r.Tables[0].Columns[0] = "IBV_QPT_X" },
			"queue pair type IBV_QPT_X or opcode IBV_WR_SEND is not in the headers"},
		"unknown row": {func(r *model.Release) { r.Tables[0].Rows[0].Name = "IBV_WR_X" },
			"or opcode IBV_WR_X is not in the headers"},
		"unknown cell": {func(r *model.Release) { r.Tables[0].Rows[0].Cells[0] = "maybe" }, `a cell "maybe"`},
		"unknown flag": {func(r *model.Release) { r.Flags[0].Name = "IBV_SEND_X" },
			"send flag IBV_SEND_X is not in the headers"},
		"unknown flag type": {func(r *model.Release) { r.Flags[0].QPTypes[0] = "IBV_QPT_X" },
			"queue pair type IBV_QPT_X"},
		"unknown flag opcode": {func(r *model.Release) { r.Flags[1].Opcodes[0] = "IBV_WR_X" }, "opcode IBV_WR_X"},
	} {
		t.Run(name, func(t *testing.T) {
			r := smallRelease()
			c.change(r)
			_, _, err := resolvePost(t, r, "", "", "")
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestPostSendRows checks the format of the committed rows. Planning the release checks whether they still apply.
func TestPostSendRows(t *testing.T) {
	files, err := DefaultGridFiles()
	require.NoError(t, err)
	kinds := map[StatementKind]int{}
	for _, f := range files {
		if f.Name == "post_send" || f.Part != nil {
			for _, row := range f.rows {
				kinds[row.kind]++
				assert.Regexp(t, `^gen/rules/tables/[a-z_]+\.txt:[0-9]+$`, row.at)
			}
		}
	}
	assert.Equal(t, 4, kinds[Disputes], "TSO and SEND_WITH_INV on UD, LOCAL_INV and SEND_WITH_INV on UC")
	assert.Positive(t, kinds[Answers])
	assert.Positive(t, kinds[Reads])
}
