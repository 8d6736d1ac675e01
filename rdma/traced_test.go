// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/internal/trace"
)

// noPath is a data path that is never called.
type noPath struct{ Path }

// TestUntraced: a queue has a path of package trace only while a trace is recorded, so that otherwise posts and polls
// cost nothing more.
func TestUntraced(t *testing.T) {
	own := &noPath{}
	path := func() Path {
		_, p, err := newSlot(0, 0, "ibv_post_send", &QueueOptions{Path: own})
		require.NoError(t, err)
		return p
	}
	assert.Equal(t, Path(own), path())
	r, err := trace.Start(filepath.Join(t.TempDir(), "trace"))
	require.NoError(t, err)
	assert.IsType(t, &trace.Path{}, path())
	assert.Equal(t, Path(own), trace.Under(path()))
	require.NoError(t, r.Stop())
	assert.Equal(t, Path(own), path())
}
