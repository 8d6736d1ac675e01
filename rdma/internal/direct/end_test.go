// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
)

// unset is an empty environment.
func unset(string) (string, bool) { return "", false }

// TestEndOfAQueueWhoseAddressIsUsedAgain: when C destroys a queue, another goroutine may create a queue at the same
// address before the first queue's path is removed.
func TestEndOfAQueueWhoseAddressIsUsedAgain(t *testing.T) {
	d := New(nil, unset, true)
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

// TestRegisterOfTwoPaths: queue pairs with the same doorbell register share its lock, even on two paths.
func TestRegisterOfTwoPaths(t *testing.T) {
	out := &mlx5dv.QP{BF: mlx5dv.QPBF{Reg: 0x1000, Size: 256}}
	one, other := &queuePair{device: New(nil, unset, true)}, &queuePair{device: New(nil, unset, true)}
	r := one.device.use(one, out)
	assert.False(t, r.shared.Load())
	assert.Same(t, r, other.device.use(other, out))
	assert.True(t, r.shared.Load())
	r.leave(one)
	assert.Same(t, r, registers.at[out.BF.Reg])
	r.leave(other)
	assert.Empty(t, registers.at)
}
