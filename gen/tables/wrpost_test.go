// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// wrPostPage returns a made-up page in the format of the real one, with a mistake in the last row.
func wrPostPage() string {
	row := func(cells ...string) string { return "T{\n" + strings.Join(cells, "\nT}@T{\n") + "\nT}\n" }
	page := "'\\\" t\n.SH WORK\n.TS\ntab(@);\nlw(16.6n) l l l.\n" + row(wrPostHeader...) + "_\n"
	for i := range wrPostLeast {
		name := string(rune('A' + i))
		page += row("OP_"+name, "ibv_wr_op_"+strings.ToLower(name)+"()", "RC,\nXRC_SEND", "DATA, QP")
	}
	return page + row("LAST", "ibv_wr_last()", "SRC SEND", "NONE") +
		".TE\n.SS Flags\nWhat they " +
		"do.\n.TP\n\\f[B]IBV_SEND_FENCE\\f[R]\nWait.\n.TP\n\\f[B]IBV_SEND_SIGNALED\\f[R]\nTell.\n.SH " +
		"END\n.TP\nnothing\n"
}

func TestReadWRPost(t *testing.T) {
	builders, flags, err := ReadWRPost("p.3", []byte(wrPostPage()))
	require.NoError(t, err)
	assert.Equal(t, []string{"builder", "qp_types", "setters"}, builders.Columns)
	require.Len(t, builders.Rows, wrPostLeast+1)
	assert.Equal(t, model.TableRow{Name: "OP_A", Cells: []string{"ibv_wr_op_a", "RC, XRC_SEND", "DATA, QP"}},
		builders.Rows[0])
	assert.Equal(t, model.TableRow{Name: "LAST", Cells: []string{"ibv_wr_last", "SRC SEND", "NONE"}},
		builders.Rows[wrPostLeast], "the page's words are kept")
	assert.Equal(t, []model.TableRow{{Name: "IBV_SEND_FENCE", Cells: []string{"yes"}},
		{Name: "IBV_SEND_SIGNALED", Cells: []string{"yes"}}}, flags.Rows)
}

// wrPostMarkdown returns the Markdown source of wrPostPage.
func wrPostMarkdown() string {
	row := func(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
	page := "---\ntitle: Work\n---\n\n# WORK\n\n" + row(wrPostHeader...) + "|:---|---|----------|---:|\n"
	for i := range wrPostLeast {
		name := string(rune('A' + i))
		page += row("OP_"+name, "ibv_wr_op_"+strings.ToLower(name)+"()", "RC, XRC_SEND", "DATA, QP")
	}
	return page + row("LAST", "ibv_wr_last()", "SRC SEND", "NONE") +
		"\n## Flags\n\nWhat they do.\n\n**IBV_SEND_FENCE**\n:   Wait.\n    Long.\n\n**IBV_SEND_SIGNALED**\n:   " +
		"Tell.\n\n# END\n\n**nothing**\n:   At all.\n"
}

func TestReadWRPostMarkdown(t *testing.T) {
	builders, flags, err := ReadWRPost("p.3", []byte(wrPostPage()))
	require.NoError(t, err)
	sameBuilders, sameFlags, err := ReadWRPost("p.3.md", []byte(wrPostMarkdown()))
	require.NoError(t, err)
	assert.Equal(t, builders, sameBuilders)
	assert.Equal(t, flags, sameFlags)
	for old, new := range map[string]string{ // other spellings of the same contents
		"**\n:   ":    "**\n\n:   ",
		":   Wait.":   "  : Wait.",
		"    Long.\n": "    Long.\n\n:   Another description.\n",
	} {
		page := strings.ReplaceAll(wrPostMarkdown(), old, new)
		require.NotEqual(t, wrPostMarkdown(), page)
		sameBuilders, sameFlags, err = ReadWRPost("p.3.md", []byte(page))
		require.NoError(t, err, page)
		assert.Equal(t, builders, sameBuilders)
		assert.Equal(t, flags, sameFlags)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"no table":       {"|", "!", "the page has no table"},
		"another column": {"setters", "setter", "the table has the columns"},
		"missing cell":   {"| NONE ", "", "row of 3 cells, want 4"},
		"further cell":   {"| NONE ", "| NONE | x ", "row of 5 cells, want 4"},
		"open row":       {"NONE |", "NONE", "row of 4 cells, want 4 with | on both sides"},
		"no operation":   {"LAST", "last", "is not an operation"},
		"operation":      {"LAST", "OP_A", "a second row for OP_A"},
		"few":            {"| OP_C", "# OTHER\n| OP_C", fmt.Sprintf("has 2 operations, fewer than %d", wrPostLeast)},
		"indented row": {"| LAST", " | LAST",
			`" | LAST | ibv_wr_last() | SRC SEND | NONE |" is separated from the rows`},
		"row apart":      {"| LAST", "\n| LAST", "is separated from the rows"},
		"flag twice":     {"IBV_SEND_SIGNALED", "IBV_SEND_FENCE", "a second entry for IBV_SEND_FENCE"},
		"no flags":       {"## Flags", "## Marks", "no section on flags"},
		"no flag listed": {"**IBV_", "**ibv_", "is not a flag"},
		"no flags at all": {"**IBV_SEND_FENCE**\n:   Wait.\n    Long.\n\n**IBV_SEND_SIGNALED**\n:   Tell.\n", "None.\n",
			"lists none"},
		"not described": {":   Wait", "    Wait", "IBV_SEND_FENCE is listed without a description"},
		"not a flag":    {"IBV_SEND_FENCE", "IBV_ACCESS_X", "is not a flag"},
	} {
		t.Run(name, func(t *testing.T) {
			page := wrPostMarkdown()
			require.Contains(t, page, c.old)
			_, _, err := ReadWRPost("p.3.md", []byte(strings.ReplaceAll(page, c.old, c.new)))
			require.ErrorContains(t, err, "p.3.md:")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestReadWRPostRejects(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"no table":        {".TS\n", "", "the page has no table"},
		"another tab":     {"tab(@);", "tab(|);", "does not separate its cells with @"},
		"another column":  {"setters\n", "setter\n", "the table has the columns"},
		"missing cell":    {"T}@T{\nNONE", "", "row of 3 cells, want 4"},
		"further cell":    {"NONE\n", "NONE\nT}@T{\nx\n", "row of 5 cells, want 4"},
		"no operation":    {"LAST", "last", "is not an operation"},
		"no builder":      {"ibv_wr_last()", "ibv_wr_last", "is not an operation"},
		"builder twice":   {"ibv_wr_last()", "ibv_wr_op_a()", "a second row for LAST or ibv_wr_op_a"},
		"operation twice": {"LAST", "OP_A", "a second row for OP_A"},
		"empty types":     {"SRC SEND", "", "is not an operation"},
		"request in cell": {"SRC SEND", ".B SRC", `".B SRC" is in a cell`},
		"no end":          {".TE\n", "", `".SS Flags" is between the rows`},
		"row begun late":  {"T{\nLAST", "LAST", `"LAST" is between the rows of the table`},
		"few": {"T{\nOP_A\nT}@T{\nibv_wr_op_a()\nT}@T{\nRC,\nXRC_SEND\nT}@T{\nDATA, " +
			"QP\nT}\nT{\nOP_B\nT}@T{\nibv_wr_op_b()\nT}@T{\nRC,\nXRC_SEND\nT}@T{\nDATA, QP\nT}\n", "",
			fmt.Sprintf("has %d operations", wrPostLeast-1)},
		"no flags":         {".SS Flags", ".SS Marks", "no section on flags"},
		"no flag listed":   {".TP\n", ".PP\n", "has no .TP line before it"},
		"flag on the line": {".TP\n", ".TP ", "has no .TP line before it"},
		"not a send flag":  {"IBV_SEND_FENCE", "IBV_ACCESS_X", "is not a flag"},
		"flag twice":       {"IBV_SEND_SIGNALED", "IBV_SEND_FENCE", "a second entry for IBV_SEND_FENCE"},
		"nothing after TS": {"tab(@);\n", "", "does not separate"},
	} {
		t.Run(name, func(t *testing.T) {
			page := wrPostPage()
			require.Contains(t, page, c.old)
			_, _, err := ReadWRPost("p.3", []byte(strings.ReplaceAll(page, c.old, c.new)))
			require.ErrorContains(t, err, "p.3:")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func FuzzReadWRPost(f *testing.F) {
	f.Add(wrPostPage())
	f.Add(wrPostMarkdown())
	f.Fuzz(func(t *testing.T, page string) {
		for _, name := range []string{"p.3", "p.3.md"} {
			builders, _, err := ReadWRPost(name, []byte(page))
			if err != nil {
				continue
			}
			for _, row := range builders.Rows {
				require.Len(t, row.Cells, 3)
				require.NotContains(t, row.Cells, "")
			}
		}
	})
}
