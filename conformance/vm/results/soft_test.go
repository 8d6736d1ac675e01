// SPDX-License-Identifier: BSD-2-Clause

package results

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const rowsOfTest = `
= stricter | specification | it is
post_send | 6.1; 6.12; 7 | RC | SEND; TSO | none | post=EINVAL | stricter
`

// TestUnexplained checks that each difference needs a row with that cell and result, and each row a difference.
func TestUnexplained(t *testing.T) {
	rows, err := parseDeviations("rows", rowsOfTest)
	require.NoError(t, err)
	columns := []string{"qp_type", "opcode", "flags", "post"}
	table := func(posts ...string) Table {
		return Table{Columns: columns, Keys: 3,
			Rows: [][]string{{"RC", "SEND", "none", posts[0]}, {"RC", "TSO", "none", posts[1]},
				{"UC", "SEND", "none", posts[2]}}}
	}
	recorded := map[string]Table{}
	for _, kernel := range Kernels {
		recorded[kernel] = table("0", "0", "0")
	}
	assert.Empty(t, unexplained("rows", "post_send", table("EINVAL", "EINVAL", "0"), recorded, rows))
	assert.Len(t, unexplained("rows", "post_send", table("EINVAL", "EINVAL", "EINVAL"), recorded, rows), len(Kernels),
		"differences without a row")
	assert.Len(t, unexplained("rows", "post_send", table("EINVAL", "0", "0"), recorded, rows), len(Kernels),
		"rows about what does not differ")
	assert.Len(t, unexplained("rows", "post_send", table("EINVAL", "ENOMEM", "0"), recorded, rows), len(Kernels),
		"another answer than the row's")
	assert.Len(t, unexplained("rows", "post_send", table("EINVAL", "EINVAL", "0"), recorded, append(rows, rows[0])),
		2*len(Kernels), "two rows about a cell")

	recorded["7"] = table("0", "EINVAL", "0")
	assert.Equal(t, []string{"rows:3: post_send: 7: RC, TSO, none: post does not differ; delete it"},
		unexplained("rows", "post_send", table("EINVAL", "EINVAL", "0"), recorded, rows), "one kernel of three")
	short := table("0", "0", "0")
	short.Rows = short.Rows[:2]
	recorded["7"] = short
	assert.Contains(t, unexplained("rows", "post_send", table("EINVAL", "EINVAL", "0"), recorded, rows),
		"post_send: 7: UC, SEND, none: it was not measured on Soft-RoCE")
}

// TestDeviationRows checks that malformed rows are errors with a position.
func TestDeviationRows(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"= stricter | specification",
			"x:1: want = label | kind | reason"},
		{"= stricter | opinion | it is",
			`x:1: unknown kind of reason "opinion"`},
		{"= stricter | specification | it is",
			`x: no row uses label "stricter"; delete it`},
		{"post_send | 6.1 | RC | SEND | none | post=0 | lenient",
			`x:1: no label "lenient" above`},
		{"= a | rxe limit | b\npost_send | 6.1 | RC | a",
			"x:2: want table | kernels | keys | ... | column=answer; ... | label"},
		{"= a | rxe limit | b\npost_send | 5.4 | RC | SEND | none | post=0 | a",
			`x:2: nothing was measured on "5.4"`},
		{"= a | rxe limit | b\npost_sent | 6.1 | RC | SEND | none | post=0 | a",
			`x:2: nothing was measured in a table "post_sent"`},
		{"= a | rxe limit | b\npost_send | 6.1 | RC | SEND | none | EINVAL | a",
			`x:2: "EINVAL" is not column=answer`},
		{"= a | rxe limit | b\n= a | rxe limit | c\ncreate_qp | 7 | RC | a=1 | a",
			`x:2: label "a" is defined twice`},
	} {
		_, err := parseDeviations("x", c.text)
		assert.ErrorContains(t, err, c.want, c.text)
	}
	_, err := parseDeviations("soft.txt", softRows)
	assert.NoError(t, err)
	_, err = parseDeviations("native.txt", nativeRows)
	assert.NoError(t, err)
}
