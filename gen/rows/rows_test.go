// SPDX-License-Identifier: BSD-2-Clause

package rows

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var form = Form{Want: "name | what | label", Least: 2, Most: 3, Key: []int{1, 0}, Directives: true,
	Labels: "label | reason | source", MoreLabels: 1}

func TestRead(t *testing.T) {
	f := Read("x.txt", "# comment\n\n@ word a | b\n= why | the reason | the source | more\n a | b | why\n\ta|, c ,d|\n",
		form)
	require.Len(t, f.Rows, 3)
	assert.Equal(t, &Row{Columns: []string{"word a | b"}, Directive: true, At: "x.txt:3"}, f.Rows[0])
	assert.Equal(t, &Row{Columns: []string{"a", "b", "why"}, At: "x.txt:5"}, f.Rows[1])
	assert.Equal(t, []string{"", "c", "d"}, List(f.Rows[2].Columns[1]))
	assert.ErrorContains(t, f.Err(), `x.txt:4: no row uses label "why"; delete it`)
	l := f.Use("why", f.Rows[1])
	assert.Equal(t, []string{"the reason", "the source", "more"}, []string{l.Reason, l.Source, l.More})
	assert.NoError(t, f.Err())
	assert.Nil(t, f.Find("b", "x"))
	assert.Len(t, f.Stale(), 2)
	assert.Same(t, f.Rows[1], f.Lookup("b", "a"))
	assert.Len(t, f.Stale(), 2)
	assert.Same(t, f.Rows[1], f.Find("b", "a"))
	assert.Equal(t, f.Rows[2:], f.Stale())

	some := f.Filter(func(r *Row) bool { return r.Columns[0] != "a" })
	assert.Nil(t, some.Lookup("b", "a"))
	assert.Equal(t, f.Rows[:1], some.Rows[:1], "a directive")
	one := Read("x.txt", "a | b\nc | d\n", form)
	require.NotNil(t, one.Filter(func(r *Row) bool { return r.Columns[0] == "c" }).Find("d", "c"))
	assert.Equal(t, one.Rows[:1], one.Stale(), "the rows are shared")

	f = Read("x.txt", "a  b c\nd\n", Form{Words: true, Key: []int{0}})
	assert.Equal(t, "b c", f.Rows[0].Rest(1))
	f = Read("x.txt", "a b=B\nc\n", Form{Each: true, Key: []int{0}})
	require.Len(t, f.Rows, 3)
	assert.Equal(t, &Row{Columns: []string{"b", "B"}, At: "x.txt:1"}, f.Rows[1])
	assert.NoError(t, f.Err())
}

func TestRejected(t *testing.T) {
	for text, want := range map[string]string{
		"a":                     "x.txt:1: 1 columns; want name | what | label",
		"\na | b | c | d":       "x.txt:2: 4 columns; want name | what | label",
		"a | b\n\na | b | c":    "x.txt:3: duplicate b a, first at x.txt:1",
		"= why | reason":        "x.txt:1: want = label | reason | source",
		"= why | | source":      "x.txt:1: want = label | reason | source",
		"= a|b|c|d|e":           "x.txt:1: want = label | reason | source",
		"= a|b|c\n= a|b|c":      `x.txt:2: duplicate label "a", first at x.txt:1`,
		"a | b\n= why | r | so": `x.txt:1: unknown label "why"; add a line above: = why | reason | source`,
	} {
		f := Read("x.txt", text, form)
		for _, row := range f.Rows {
			f.Use("why", row)
		}
		assert.ErrorContains(t, f.Err(), want)
	}
}
