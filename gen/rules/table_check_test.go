// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	checkGrid = `@ package  ibv
@ question Which?
@ func     Flag | says.
@ result   FlagRule | is.
@ dim      qpt  | queue pair type | enum ibv_qp_type
@ dim      flag | send flag | flag ibv_send_flags
@ check    CheckFlags | Needs | Always | says.
@ value    Needs | mask ibv_send_flags | what is needed
= why | the reason | the source
IBV_QPT_RC | IBV_SEND_FENCE | yes | IBV_SEND_INLINE | why
`
	alwaysGrid = `@ package  ibv
@ question Which?
@ func     Always | says.
@ result   AlwaysRule | is.
@ dim      qpt  | queue pair type | enum ibv_qp_type
@ value    Must | mask ibv_send_flags | what must be set
= why | the reason | the source
IBV_QPT_RC | yes | none | why
`
)

func resolveCheck(t *testing.T, check, always string) ([]*Grid, error) {
	t.Helper()
	var files []*GridFile
	for name, text := range map[string]string{"a.txt": check, "b.txt": always} {
		f, err := ParseGrid(name, text)
		require.NoError(t, err)
		files = append(files, f)
	}
	return ResolveGrids(smallRelease(), "ibv", files)
}

func TestFlagCheck(t *testing.T) {
	grids, err := resolveCheck(t, checkGrid, alwaysGrid)
	require.NoError(t, err)
	for _, g := range grids {
		if g.Name != "a" {
			continue
		}
		assert.Equal(t, "CheckFlags", g.Check.Func)
		assert.Equal(t, "Must", g.Check.AlwaysValue())
		assert.Contains(t, g.goNames(), "CheckFlags")
	}
}

func TestFlagCheckRejected(t *testing.T) {
	for name, c := range map[string]struct{ from, to, always, want string }{
		"no such value": {"CheckFlags | Needs", "CheckFlags | Wants", "",
			"Wants is not a mask of enum ibv_send_flags"},
		"value of another": {"Needs | mask ibv_send_flags", "Needs | mask ibv_qp_type", "",
			"Needs is not a mask of enum ibv_send_flags"},
		"no flags": {"flag ibv_send_flags", "enum ibv_send_flags", "", "the last dimension does not " +
			"consist of flags"},
		"no such lookup":     {"| Always |", "| Never |", "", "Never is not a lookup of one mask"},
		"lookup of a number": {"", "", "@ value    Must | number | what", "Always is not a lookup of one mask"},
	} {
		t.Run(name, func(t *testing.T) {
			check, always := checkGrid, alwaysGrid
			if c.from != "" {
				check = replaceOnce(t, check, c.from, c.to)
			}
			if c.always != "" {
				always = replaceOnce(t, always, "@ value    Must | mask ibv_send_flags | what must be set", c.always)
				always = replaceOnce(t, always, "yes | none | why", "yes | 3 | why")
			}
			if name == "value of another" {
				check = replaceOnce(t, check, "yes | IBV_SEND_INLINE", "yes | IBV_QPT_RC")
			}
			_, err := resolveCheck(t, check, always)
			require.ErrorContains(t, err, "gen/rules/tables/a.txt: @ check CheckFlags: ")
			require.ErrorContains(t, err, c.want)
		})
	}
}

func replaceOnce(t *testing.T, text, from, to string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, from), from)
	return strings.Replace(text, from, to, 1)
}
