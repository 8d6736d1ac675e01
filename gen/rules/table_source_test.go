// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSources checks that a page of another release is cited with that release.
func TestSources(t *testing.T) {
	g := Grid{Release: "66.0"}
	assert.Equal(t, "rdma-core 66.0", g.Source())
	g.Pages = []string{"a.3", "b.3"}
	assert.Equal(t, "a.3, rdma-core 66.0", g.Source())
	assert.Equal(t, "a.3, b.3, rdma-core 66.0", g.Sources())
	g.StandIns = map[string]string{"a.3": "65.0"}
	assert.Equal(t, "a.3, rdma-core 65.0", g.Source())
	assert.Equal(t, "a.3, rdma-core 65.0; b.3, rdma-core 66.0", g.Sources())
	g.StandIns["b.3"] = "65.0"
	assert.Equal(t, "a.3, b.3, rdma-core 65.0", g.Sources())

	r := smallRelease()
	r.StandIns = map[string]string{r.Tables[0].Page: "8.0"}
	by, grids, err := resolvePost(t, r, "", "", "")
	require.NoError(t, err)
	assert.Equal(t, r.Tables[0].Page+", rdma-core 8.0", by["post_send"].Cells[0].Source)
	assert.Contains(t, RenderPostSend(r, grids), r.Tables[0].Page+", rdma-core 8.0")
	for _, g := range grids {
		assert.Equal(t, r.Tables[0].Page+", rdma-core 8.0", g.Source())
	}
}
