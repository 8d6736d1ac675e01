package rules

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// smallRelease has two documented types and opcodes, and one more of each.
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
		Tables: []model.Table{{Name: "post_send", Page: "p.3", Columns: []string{"IBV_QPT_UD", "IBV_QPT_RC"}, Rows: []model.TableRow{
			{Name: "IBV_WR_SEND", Cells: []string{"yes", "yes"}}, {Name: "IBV_WR_READ", Cells: []string{"no", "yes"}},
		}}},
		Flags: []model.Flag{
			{Name: "IBV_SEND_FENCE", Page: "p.3", QPTypes: []string{"IBV_QPT_RC"}},
			{Name: "IBV_SEND_INLINE", Page: "p.3", Opcodes: []string{"IBV_WR_SEND"}},
			{Name: "IBV_SEND_SIGNALED", Page: "p.3", SigAll: true, Capability: "caps"},
			{Name: "IBV_ACCESS_OTHER", Page: "q.3"},
		},
	}
}

const label = "= why | the reason | the source\n"

func resolveSmall(t *testing.T, errata string) (*PostSend, error) {
	t.Helper()
	rows, err := ParsePostSendErrata("e.txt", errata)
	if err != nil {
		return nil, err
	}
	return ResolvePostSend(smallRelease(), rows)
}

func TestResolvePostSend(t *testing.T) {
	p, err := resolveSmall(t, label+`
# a row of each kind
IBV_QPT_NEW     | IBV_WR_SEND | no           | why
IBV_QPT_NEW     | IBV_WR_NEW  | elsewhere    | why
IBV_QPT_RC      | IBV_WR_NEW  | unspecified  | why
IBV_QPT_RC      | IBV_WR_READ | disputed no  | why
IBV_QPT_UD      | IBV_WR_READ | yes          | why
IBV_SEND_FENCE  | IBV_QPT_UD  | yes          | why
IBV_SEND_INLINE | IBV_WR_READ | reading      | why
`)
	require.NoError(t, err)
	page := "p.3, rdma-core 9.0"
	lists := func(s string) string { return "the table of opcodes lists " + s }
	given := Validity{Reason: "the reason", Source: "the source"}
	with := func(v Validity, a Answer, note string) Validity { v.Answer, v.Note = a, note; return v }
	silent := Validity{Answer: Unspecified, Reason: "no source says", Source: page}
	assert.Equal(t, []string{"IBV_QPT_RC", "IBV_QPT_UD", "IBV_QPT_NEW"}, p.QPTypes)
	assert.Equal(t, [][]Validity{
		{{Answer: Yes, Reason: lists("it"), Source: page}, {Answer: Yes, Reason: lists("it"), Source: page}, with(given, No, "")},
		{
			{Answer: Yes, Reason: lists("it"), Source: page, Note: "another source says no: the reason (the source)"},
			with(given, Yes, page+" says no: "+lists("IBV_WR_READ for IBV_QPT_RC only")),
			silent,
		},
		{with(given, Unspecified, ""), silent, with(given, Elsewhere, "")},
	}, p.Cells)

	fence, inline, signaled, unknown := p.Flags[0], p.Flags[1], p.Flags[2], p.Flags[3]
	limit := "IBV_SEND_FENCE is limited to IBV_QPT_RC"
	assert.Equal(t, Validity{Answer: Yes, Reason: limit, Source: page}, fence.Cells[0][0])
	assert.Equal(t, with(given, Yes, page+" says no: "+limit), fence.Cells[0][1])
	assert.Equal(t, p.Cells[0][2], fence.Cells[0][2], "the operation itself is not valid")
	assert.Equal(t, Validity{
		Answer: No, Reason: "IBV_SEND_INLINE is limited to IBV_WR_SEND", Source: page, Note: "the reason (the source)",
	}, inline.Cells[1][0])
	assert.Equal(t, "caps of the device must report it for the queue pair's type; "+
		"it has an effect only when the queue pair was created with sq_sig_all = 0", signaled.Cells[0][0].Condition)
	assert.Equal(t, Yes, signaled.Cells[1][1].Answer)
	assert.Equal(t, silent, unknown.Cells[0][0], "the page does not mention the flag")

	text := p.Render()
	assert.Contains(t, text, "opcode  RC    UD    NEW\nSEND    X     X     .[1]\nREAD    X[2]  X[3]  ?\nNEW     ?[1]  ?     -[1]\n")
	assert.Contains(t, text, "FENCE        all, UD[4]        all\nINLINE       all               SEND, not READ[1]\nSIGNALED[5]  all               all\nNEW          ?RC, ?UD          ?SEND, ?READ\n")
	assert.Contains(t, text, "[1] the reason (the source)\n[2] another source says no")
}

func TestPostSendErrataRefused(t *testing.T) {
	for name, c := range map[string]struct{ errata, want string }{
		"three columns":          {label + "IBV_QPT_NEW | IBV_WR_SEND | no\n", "e.txt:2: 3 columns"},
		"label of two columns":   {"= why | the reason\n", "e.txt:1: want = label | reason | source"},
		"label without source":   {"= why | the reason | \n", "e.txt:1: want = label | reason | source"},
		"label twice":            {label + label, `e.txt:2: label "why" stands at e.txt:1 already`},
		"label unused":           {label, `e.txt:1: no row uses label "why"`},
		"label unknown":          {"IBV_QPT_NEW | IBV_WR_SEND | no | because\n", `e.txt:1: no label "because" stands above`},
		"unknown statement":      {label + "IBV_QPT_NEW | IBV_WR_SEND | perhaps | why\n", `e.txt:2: unknown statement "perhaps"`},
		"disputed unspecified":   {label + "IBV_QPT_RC | IBV_WR_SEND | disputed unspecified | why\n", "e.txt:2: unknown statement"},
		"row twice":              {label + strings.Repeat("IBV_QPT_NEW | IBV_WR_SEND | no | why\n", 2), "e.txt:3: IBV_QPT_NEW × IBV_WR_SEND stands at e.txt:2 already"},
		"unknown type":           {label + "IBV_QPT_OLD | IBV_WR_SEND | no | why\n", "e.txt:2: IBV_QPT_OLD is neither"},
		"unknown opcode":         {label + "IBV_QPT_RC | IBV_WR_OLD | no | why\n", "e.txt:2: IBV_WR_OLD does not go with IBV_QPT_RC"},
		"unknown flag":           {label + "IBV_SEND_OLD | IBV_WR_SEND | no | why\n", "e.txt:2: IBV_SEND_OLD is neither"},
		"flag of nothing":        {label + "IBV_SEND_FENCE | IBV_WR_OLD | no | why\n", "e.txt:2: IBV_WR_OLD does not go with IBV_SEND_FENCE"},
		"opcode first":           {label + "IBV_WR_SEND | IBV_QPT_RC | no | why\n", "e.txt:2: IBV_WR_SEND is neither"},
		"flag elsewhere":         {label + "IBV_SEND_FENCE | IBV_QPT_RC | elsewhere | why\n", "e.txt:2: a flag's rule is yes or no"},
		"page agrees":            {label + "IBV_QPT_UD | IBV_WR_READ | no | why\n", "e.txt:2: stale erratum: p.3 says no itself"},
		"page has an answer":     {label + "IBV_QPT_UD | IBV_WR_READ | unspecified | why\n", "e.txt:2: p.3 says no about IBV_QPT_UD × IBV_WR_READ"},
		"nothing disputed":       {label + "IBV_QPT_UD | IBV_WR_READ | disputed no | why\n", "e.txt:2: stale erratum: p.3 says no as well"},
		"silent page disputed":   {label + "IBV_QPT_NEW | IBV_WR_READ | disputed no | why\n", "e.txt:2: p.3 says nothing about"},
		"silent page read":       {label + "IBV_QPT_NEW | IBV_WR_READ | reading | why\n", "e.txt:2: p.3 says nothing about"},
		"flag agrees":            {label + "IBV_SEND_INLINE | IBV_QPT_UD | yes | why\n", "e.txt:2: stale erratum: p.3 says yes itself"},
		"flag without effect":    {label + "IBV_SEND_INLINE | IBV_QPT_NEW | no | why\n", "e.txt:2: stale erratum: it does not change what is said about IBV_SEND_INLINE × IBV_QPT_NEW"},
		"flag hidden by another": {label + "IBV_SEND_INLINE | IBV_WR_NEW | reading | why\n", "e.txt:2: stale erratum: it does not change"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := resolveSmall(t, c.errata)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestResolvePostSendRefusesModel(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*model.Release)
		want   string
	}{
		"no table":            {func(r *model.Release) { r.Tables[0].Name = "other" }, "model of 9.0: it has no table post_send"},
		"no enum":             {func(r *model.Release) { r.Headers[0].Enums[0].Tag = "x" }, "it has no enum ibv_qp_type"},
		"repeated value":      {func(r *model.Release) { r.Headers[0].Enums[1].Enumerators[1].Value = "2" }, "IBV_WR_READ repeats the value of IBV_WR_SEND"},
		"unknown column":      {func(r *model.Release) { r.Tables[0].Columns[0] = "IBV_QPT_X" }, "queue pair type IBV_QPT_X is not in the headers"},
		"unknown row":         {func(r *model.Release) { r.Tables[0].Rows[0].Name = "IBV_WR_X" }, "opcode IBV_WR_X is not in the headers"},
		"unknown cell":        {func(r *model.Release) { r.Tables[0].Rows[0].Cells[0] = "maybe" }, `a cell "maybe"`},
		"unknown flag":        {func(r *model.Release) { r.Flags[0].Name = "IBV_SEND_X" }, "send flag IBV_SEND_X is not in the headers"},
		"unknown flag type":   {func(r *model.Release) { r.Flags[0].QPTypes[0] = "IBV_QPT_X" }, "queue pair type IBV_QPT_X"},
		"unknown flag opcode": {func(r *model.Release) { r.Flags[1].Opcodes[0] = "IBV_WR_X" }, "opcode IBV_WR_X"},
	} {
		t.Run(name, func(t *testing.T) {
			r := smallRelease()
			c.change(r)
			_, err := ResolvePostSend(r, nil)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestPostSendErrataRows keeps the committed rows in shape; whether they still apply is checked where the release's model is.
func TestPostSendErrataRows(t *testing.T) {
	rows, err := DefaultPostSendErrata()
	require.NoError(t, err)
	kinds := map[ErratumKind]int{}
	for _, e := range rows {
		kinds[e.Kind]++
		assert.Regexp(t, `^gen/rules/postsend_errata\.txt:[0-9]+$`, e.At)
	}
	assert.Equal(t, 4, kinds[Disputes], "TSO and SEND_WITH_INV on UD, LOCAL_INV and SEND_WITH_INV on UC")
	assert.Positive(t, kinds[Answers])
	assert.Positive(t, kinds[Reads])
}
