// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
	"github.com/goverbs/goverbs/headers"
)

// open lists, for each table, the cells that may be unspecified, because each provider decides or no source covers
// them. All other cells, and all cells of tables without an entry, must be specified.
var open = map[string]func(at []string) bool{
	"post_send":  providers,
	"send_flags": providers,
	"wr_post":    providers,
	"wr_flags":   providers,
	"modify_qp":  providers,
	// Opcodes without a builder cannot be measured.
	"wr_post_measured": providers,
}

// providers reports whether every provider defines the cell for itself.
func providers(at []string) bool {
	return slices.Contains(at, "IBV_QPT_DRIVER") || slices.Contains(at, "IBV_WR_DRIVER1")
}

// grids returns the tables of all packages.
func grids(t *testing.T) map[string]*rules.Grid {
	t.Helper()
	var primaries []string
	for _, p := range project.All {
		primaries = append(primaries, p.File(headers.Primary(p.Name)))
	}
	res, err := generate.FromModels(generate.Sources{Models: "../../headers/models", Measured: "../../headers/measured",
		Ioctls: "../../headers/ioctls"}, primaries...)
	require.NoError(t, err)
	all := map[string]*rules.Grid{}
	for _, p := range res.Plans {
		for _, g := range p.Grids {
			require.Nil(t, all[g.Name], g.Name)
			all[g.Name] = g
		}
	}
	return all
}

// mine are the tables about queue pairs, with their numbers of cells.
var mine = map[string]int{
	"post_send": 7 * 14, "send_flags": 7 * 14 * 5, "wr_post": 7 * 14, "wr_flags": 7 * 14 * 5, "wr_builder": 14,
	"modify_qp": 7 * 7 * 7, "qp_posting": 7 * 2,
	"post_send_measured": 3 * 7 * 14, "wr_post_measured": 3 * 7 * 14,
}

// TestCoverage checks that every cell exists, has a reason and a source, and is specified unless listed as open.
func TestCoverage(t *testing.T) {
	all := grids(t)
	for name, size := range mine {
		require.NotNil(t, all[name], "table %s", name)
		assert.Len(t, all[name].Cells, size, name)
	}
	for name, g := range all {
		assert.Equal(t, g.Size(), len(g.Cells), name)
		assert.Empty(t, g.Silent(), "%s: cells without an answer in any source", name)
		may := open[name]
		for i := range g.Cells {
			c, at := &g.Cells[i], g.Combination(i)
			where := name + ": " + strings.Join(at, " × ")
			assert.NotEmpty(t, c.Reason, where)
			assert.NotEmpty(t, c.Source, where)
			if mine[name] == 0 {
				continue
			}
			if c.Answer == rules.Unspecified && (may == nil || !may(at)) {
				t.Errorf("%s is unspecified and must not be", where)
			}
		}
	}
}

// TestNoWildcardsOrLocalPaths checks that data names cells exactly, and that no source is a local path.
func TestNoWildcardsOrLocalPaths(t *testing.T) {
	for name, g := range grids(t) {
		for i := range g.Cells {
			for _, text := range []string{g.Cells[i].Reason, g.Cells[i].Source, g.Cells[i].Note, g.Cells[i].Condition} {
				assert.NotRegexp(t, `/(home|work|tmp|root)/|https?:`, text, name)
			}
			assert.NotContains(t, g.Combination(i), "*", name)
		}
	}
}
