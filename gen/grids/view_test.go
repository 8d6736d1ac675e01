// SPDX-License-Identifier: BSD-2-Clause

package grids

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
)

// TestAnswerMarks checks that each answer has the same mark, class and word in the tables and in the legends.
func TestAnswerMarks(t *testing.T) {
	g := &rules.Grid{Name: "small", Release: "9.0", Question: "What?",
		Dims: []rules.Dim{{Param: "a", What: "answer", Type: "Own"}}}
	all := []struct {
		answer             rules.Answer
		mark, class, words string
	}{
		{rules.Yes, "X", "yes", "yes"}, {rules.No, ".", "no", "no"}, {rules.Capability, "c", "capability",
			"needs a capability"},
		{rules.Elsewhere, "-", "elsewhere", "not in this verb"}, {rules.Unspecified, "?", "unspecified", "unspecified"},
	}
	for _, c := range all {
		g.Dims[0].Names = append(g.Dims[0].Names, "item of "+c.class)
		g.Cells = append(g.Cells,
			rules.Cell{Validity: rules.Validity{Answer: c.answer, Reason: "because of " + c.class, Source: "p.3"}})
	}
	var b bytes.Buffer
	require.NoError(t, HTML(&b, []*rules.Grid{g}))
	cell := regexp.MustCompile(`<tr><th>([^<]*)<td class="([^"]*)" title="([^"]*)">([^<]*)<`)
	cells := cell.FindAllStringSubmatch(b.String(), -1)
	require.Len(t, cells, len(all))
	for i, c := range all {
		assert.Equal(t, []string{"item of " + c.class, c.class, c.words + ": because of " + c.class + " (p.3)", c.mark},
			cells[i][1:])
		assert.Contains(t, b.String(), "td."+c.class+" {", "the style sheet")
	}
	assert.Contains(t, b.String(),
		"<b>X</b> yes, <b>.</b> no, <b>c</b> needs a capability, <b>-</b> with another function, <b>?</b> unspecified")
	assert.Equal(t, "X yes . no c needs a capability - with another function ? unspecified",
		strings.Join(strings.Fields(viewGrid(g, true).Legend), " "))
	assert.Regexp(t, `td\.yes \{ background: #2a2`, b.String(), "yes is green")
	assert.Regexp(t, `td\.no \{ background: #888`, b.String(), "no is grey")
}

func TestShorten(t *testing.T) {
	assert.Equal(t, []string{"RC", "XRC_SEND"}, shorten([]string{"IBV_QPT_RC", "IBV_QPT_XRC_SEND"}))
	assert.Equal(t, []string{"send queue", "receive queue"}, shorten([]string{"send queue", "receive queue"}))
	assert.Equal(t, []string{"ONLY"}, shorten([]string{"IBV_ONLY"}))
}
