// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/trace"
)

// noPath is a data path that is never called.
type noPath struct{ Path }

// TestUntraced: queues use a path of package trace only while a trace is recorded, so tracing has no cost otherwise.
func TestUntraced(t *testing.T) {
	own := &noPath{}
	path := func() Path {
		_, p, err := newRoute(0, 0, "ibv_post_send", &QueueOptions{Path: own})
		require.NoError(t, err)
		return p
	}
	assert.Equal(t, Path(own), path())
	r, err := trace.Start(filepath.Join(t.TempDir(), "trace"))
	require.NoError(t, err)
	assert.IsType(t, &trace.Path{}, path())
	assert.Equal(t, Path(own), trace.Under(path()))
	_, err = trace.Start(filepath.Join(t.TempDir(), "missing", "trace"))
	assert.ErrorContains(t, err, "another trace is being written", "no file is created")
	require.NoError(t, r.Stop())
	assert.Equal(t, Path(own), path())
}

// sparsePath is a path whose Poll sets only some fields of a completion.
type sparsePath struct{ Path }

func (sparsePath) Poll(_ *ibv.CQ, wcs []ibv.WC) int32 {
	wcs[0].WRID++
	wcs[0].ByteLen++
	return 1
}

// extendedPath is a path that owns the queue and sets other fields in PollExtended.
type extendedPath struct{ quickPath }

func (*extendedPath) PollExtended(_ *ibv.CQ, wcs []ibv.WC) int32 {
	wcs[0] = ibv.WC{WRID: 7, ByteLen: 9}
	return 1
}

// TestPollProgramOnPaths: a program returns the values that the path provides for extended queues, and no values of
// earlier completions, traced or not.
func TestPollProgramOnPaths(t *testing.T) {
	poll := func(path Path) Completion {
		x := newExtendedCQ(t)
		p, err := NewPollProgram(&x.cq, 1, ibv.WC_EX_WITH_BYTE_LEN, QueueOptions{Path: path})
		require.NoError(t, err)
		defer p.Close()
		for range 2 {
			_, err := p.Poll()
			require.NoError(t, err)
		}
		found, err := p.Poll()
		require.NoError(t, err)
		require.Len(t, found, 1)
		return found[0]
	}
	check := func() {
		assert.Equal(t, Completion{WRID: 1, ByteLen: 1}, poll(sparsePath{}))
		assert.Equal(t, Completion{WRID: 7, ByteLen: 9}, poll(&extendedPath{}))
	}
	check()
	r, err := trace.Start(filepath.Join(t.TempDir(), "trace"))
	require.NoError(t, err)
	check()
	require.NoError(t, r.Stop())
}
