// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

const smallHead = `@ package  ibv
@ question What goes?
@ page     p.3
@ func     Goes | reports what goes.
@ result   GoesRule | is the answer.
@ list     Way | is a way.
@ item     WayIn | in | inwards
@ item     WayOut | out
@ dim      qpt | queue pair type | enum ibv_qp_type
@ dim      way | way | list Way
@ value    Mask | mask ibv_send_flags | some flags
@ value    Text | text | words
= why | the reason | the source
= cap | the reason | the source | a capability
`

// fillFromPage fills in the cells of the page in these tests: RC in is yes, with a mask and no text; UD out is no.
func fillFromPage(_ *model.Release, _ *GridFile, g *Grid, _ gridSet) error {
	in, out := g.At("IBV_QPT_RC", "in"), g.At("IBV_QPT_UD", "out")
	in.Validity = Validity{Answer: Yes, Reason: "listed", Source: g.Source()}
	in.Values[0] = Value{"IBV_SEND_FENCE"}
	out.Validity = Validity{Answer: No, Reason: "not listed", Source: g.Source()}
	return nil
}

const smallRest = `IBV_QPT_RC | in | agrees | IBV_SEND_FENCE | first | why
IBV_QPT_RC | WayOut | capability | none | second | cap
`

func resolveGrid(t *testing.T, text string) (*Grid, error) {
	t.Helper()
	f, err := ParseGrid("dir/goes.txt", text)
	if err != nil {
		return nil, err
	}
	types := map[string]*GridType{}
	for _, typ := range f.Types {
		types[typ.Name] = typ
	}
	return f.resolve(smallRelease(), types, fillFromPage, nil)
}

func TestResolveGrid(t *testing.T) {
	g, err := resolveGrid(t, smallHead+smallRest+`
IBV_QPT_UD  | in  | yes | IBV_SEND_SIGNALED, IBV_SEND_FENCE | third | why
IBV_QPT_UD  | in  | disputed no | why
IBV_QPT_UD  | out | yes | none | fourth | why
IBV_QPT_UD  | out | reading | why
`)
	require.NoError(t, err)
	assert.Equal(t, 6, g.Size())
	page := "p.3, rdma-core 9.0"
	for _, c := range []struct {
		at   []string
		want Cell
	}{
		{[]string{"IBV_QPT_RC", "in"},
			Cell{Validity{Answer: Yes, Reason: "listed; the reason", Source: page + "; the source"},
				[]Value{{"IBV_SEND_FENCE"}, {"first"}}}},
		{[]string{"IBV_QPT_RC", "out"},
			Cell{Validity{Answer: Capability, Condition: "a capability", Reason: "the reason", Source: "the source"},
				[]Value{{}, {"second"}}}},
		{[]string{"IBV_QPT_UD", "in"},
			Cell{Validity{Answer: Yes, Reason: "the reason", Source: "the source",
				Note: "another source says no: the reason (the source)"}, []Value{{"IBV_SEND_FENCE",
				"IBV_SEND_SIGNALED"}, {"third"}}}},
		{[]string{"IBV_QPT_UD", "out"},
			Cell{Validity{Answer: Yes, Reason: "the reason", Source: "the source",
				Note: page + " says no: not listed; the reason (the source)"}, []Value{{}, {"fourth"}}}},
		{[]string{"IBV_QPT_NEW", "in"},
			Cell{Validity{Answer: Unspecified, Reason: noSource, Source: page}, []Value{nil, nil}}},
	} {
		assert.Equal(t, c.want, *g.At(c.at...), c.at)
	}
	assert.Equal(t, [][]string{{"IBV_QPT_NEW", "in"}, {"IBV_QPT_NEW", "out"}}, g.Silent())
	assert.Nil(t, g.At("IBV_QPT_RC", "around"))
	assert.Nil(t, g.At("IBV_QPT_RC"))
	for n := range g.Cells {
		assert.Same(t, &g.Cells[n], g.At(g.Combination(n)...))
	}
}

func TestGridRejected(t *testing.T) {
	at := "dir/goes.txt:17: "
	for name, c := range map[string]struct{ text, want string }{
		"unknown directive":    {smallHead + smallRest + "@ dimension x\n", at + "unknown or incomplete directive"},
		"incomplete directive": {smallHead + smallRest + "@ func Other\n", at + "unknown or incomplete directive"},
		"private name": {strings.Replace(smallHead, "func     Goes", "func     goes", 1) + smallRest,
			`dir/goes.txt:4: "goes" is not an exported Go name`},
		"no package": {strings.Replace(smallHead, "@ package  ibv\n", "", 1) + smallRest,
			"no line @ package"},
		"values without result": {strings.Replace(smallHead, "@ result   GoesRule | is the answer.\n", "", 1) +
			smallRest, "@ result and @ value go together"},
		"kind of value": {strings.Replace(smallHead, "text | words", "prose | words", 1) + smallRest,
			"unknown kind of value"},
		"unused label": {smallHead, `dir/goes.txt:13: no row uses label "why"`},
		"unknown label": {smallHead + smallRest + "IBV_QPT_UD | in | no | because\n",
			at + `unknown label "because"`},
		"columns": {smallHead + smallRest + "IBV_QPT_UD | in | no | x | why\n", at + "5 columns"},
		"statement": {smallHead + smallRest + "IBV_QPT_UD | in | maybe | why\n",
			at + `unknown statement "maybe"`},
		"bare capability": {smallHead + smallRest + "IBV_QPT_UD | in | capability | why\n",
			at + `label "why" has no condition`},
		"unknown enumerator": {smallHead + smallRest + "IBV_QPT_OLD | in | no | why\n",
			at + "unknown queue pair type IBV_QPT_OLD"},
		"unknown item": {smallHead + smallRest + "IBV_QPT_UD | up | no | why\n",
			at + "unknown way up"},
		"wildcard": {smallHead + smallRest + "* | in | no | why\n", at + "unknown queue pair type *"},
		"unknown flag": {smallHead + smallRest + "IBV_QPT_UD | in | yes | IBV_SEND_OLD | x | why\n",
			at + `Mask: "IBV_SEND_OLD" is repeated, or not a name`},
		"flag twice": {smallHead + smallRest +
			"IBV_QPT_UD | in | yes | IBV_SEND_FENCE, IBV_SEND_FENCE | x | why\n", at + "Mask: "},
		"cell twice": {smallHead + smallRest +
			"IBV_QPT_UD | in | no | why\nIBV_QPT_RC, IBV_QPT_UD | in | no | cap\n", "dir/goes.txt:18: duplicate " +
			"IBV_QPT_UD × " +
			"in, first at dir/goes.txt:17"},
		"value missing": {smallHead + smallRest + "IBV_QPT_UD | in | yes | none | | why\n",
			"IBV_QPT_UD × in is yes but has no Text"},
		"page says so": {smallHead + smallRest + "IBV_QPT_UD | out | no | why\n",
			at + "stale row: p.3, rdma-core 9.0 already says no"},
		"page is not silent": {smallHead + smallRest + "IBV_QPT_UD | out | unspecified | why\n",
			at + "p.3, rdma-core 9.0 says no about IBV_QPT_UD × out, so it is not unspecified"},
		"agrees with nothing": {smallHead + smallRest + "IBV_QPT_UD | in | agrees | none | x | why\n",
			at + "p.3, rdma-core 9.0 does not mention"},
		"agrees otherwise": {strings.Replace(smallHead+smallRest, "agrees | IBV_SEND_FENCE", "agrees | none", 1),
			"dir/goes.txt:15: p.3, rdma-core 9.0 has Mask = IBV_SEND_FENCE"},
		"agrees without effect": {smallHead + strings.Replace(smallRest, "first", "", 1),
			"dir/goes.txt:15: stale row: it adds nothing"},
		"should agree": {strings.Replace(smallHead+smallRest, "agrees", "yes", 1),
			"dir/goes.txt:15: p.3, rdma-core 9.0 already says yes about IBV_QPT_RC × in; use agrees"},
		"nothing disputed": {smallHead + smallRest + "IBV_QPT_UD | out | disputed no | why\n",
			at + "stale row: IBV_QPT_UD × out is already no"},
		"nothing to dispute": {smallHead + smallRest + "IBV_QPT_UD | in | disputed no | why\n",
			at + "IBV_QPT_UD × in has no answer to dispute"},
		"nothing to read": {smallHead + smallRest + "IBV_QPT_UD | in | reading | why\n",
			at + "IBV_QPT_UD × in has no answer to interpret"},
		"stale correction": {smallHead + smallRest + "@ reads XX | YY | why\n",
			at + `stale correction: the page does not have "XX"`},
		"without nothing": {strings.Replace(smallHead, "enum ibv_qp_type",
			"enum ibv_qp_type | without IBV_QPT_OLD", 1) +
			smallRest, "dir/goes.txt:9: enum ibv_qp_type has no IBV_QPT_OLD to leave out"},
		"unknown enum": {strings.Replace(smallHead, "enum ibv_qp_type", "enum ibv_old", 1) + smallRest,
			"dir/goes.txt:9: model of 9.0: it has no enum ibv_old"},
		"unknown list": {strings.Replace(smallHead, "list Way\n", "list Ways\n", 1) + smallRest,
			"dir/goes.txt:10: no @ list Ways"},
		"unknown value enum": {strings.Replace(smallHead, "mask ibv_send_flags", "mask ibv_old", 1) + smallRest,
			"value Mask: enum ibv_old is neither an enum of 9.0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := resolveGrid(t, c.text)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestGridOfAnotherRelease checks that a name that the release lacks is an error and is left out, while the rest of its
// row applies.
func TestGridOfAnotherRelease(t *testing.T) {
	g, err := resolveGrid(t, smallHead+smallRest+
		"IBV_QPT_OLD, IBV_QPT_NEW | in | no | why\nIBV_QPT_UD | in | yes | IBV_SEND_OLD | x | why\n")
	require.EqualError(t, err, `dir/goes.txt:17: unknown queue pair type IBV_QPT_OLD (enum ibv_qp_type)
dir/goes.txt:18: Mask: "IBV_SEND_OLD" is repeated, or not a name of enum ibv_send_flags`,
		"no error about the value of the rejected row")
	assert.Equal(t, No, g.At("IBV_QPT_NEW", "in").Answer)
	assert.Equal(t, Cell{Validity{Answer: Yes, Reason: "the reason", Source: "the source"}, []Value{nil, {"x"}}},
		*g.At("IBV_QPT_UD", "in"))
}

// TestGridFiles checks the format of the committed files, and that every label has a reason and a source.
func TestGridFiles(t *testing.T) {
	files, err := DefaultGridFiles()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(files), 4)
	names := map[string]bool{}
	for _, name := range tableNames() {
		assert.False(t, names[name], "the name %s is used twice", name)
		names[name] = true
	}
}
