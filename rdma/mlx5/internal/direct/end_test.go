// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestEndOfAQueueWhoseAddressIsUsedAgain: C frees a queue's memory when it destroys it, and another goroutine may get
// a new queue there before the path of the old one is forgotten.
func TestEndOfAQueueWhoseAddressIsUsedAgain(t *testing.T) {
	d := New(func(string) string { return "" })
	cq, srq := new(ibv.CQ), new(ibv.SRQ)
	oldCQ, newCQ := &completionQueue{device: d, c: cq}, &completionQueue{device: d, c: cq}
	oldSRQ, newSRQ := &sharedQueue{device: d, c: srq}, &sharedQueue{device: d, c: srq}
	d.cqs[cq], d.srqs[srq] = oldCQ, oldSRQ
	require.NoError(t, oldCQ.End(func() error { d.cqs[cq] = newCQ; return nil }))
	require.NoError(t, oldSRQ.End(func() error { d.srqs[srq] = newSRQ; return nil }))
	assert.Same(t, newCQ, d.cqs[cq])
	assert.Same(t, newSRQ, d.srqs[srq])

	nothing := func() error { return nil }
	require.NoError(t, newCQ.End(nothing))
	require.NoError(t, newSRQ.End(nothing))
	assert.Empty(t, d.cqs)
	assert.Empty(t, d.srqs)
}
