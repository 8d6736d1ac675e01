// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestCapacityIsRequestedSize checks that a completion queue for the requested capacities is large enough, although the
// device rounds queue sizes up.
func TestCapacityIsRequestedSize(t *testing.T) {
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 500, MaxSGE: 1}, rdma.QueueOptions{})
	keep(t, srq, err)
	assert.EqualValues(t, 500, srq.Cap().MaxWR)
	for _, c := range []struct {
		sends, recvs uint32
		srq          ibv.Ptr[ibv.SRQ]
	}{{1, 500, 0}, {501, 0, 0}, {3, 0, srq.Ptr()}} {
		cq, err := d.CreateCQ(int(c.sends)+500, nil, 0)
		keep(t, cq, err)
		qp, err := pd.CreateQP(&ibv.QPInitAttr{
			QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: c.srq,
			Cap: ibv.QPCap{MaxSendWR: c.sends, MaxRecvWR: c.recvs, MaxSendSGE: 1, MaxRecvSGE: 1},
		}, rdma.QueueOptions{})
		keep(t, qp, err)
		assert.Equal(t, c.sends, qp.Cap().MaxSendWR)
		assert.Equal(t, c.recvs, qp.Cap().MaxRecvWR)
	}
}

// TestClosedQueuePairsUseNoCapacity checks that Close moves the completions of a queue pair from the device's queue to
// memory, for a later Poll, so that a completion queue for two queue pairs is large enough for any number of them in
// succession.
func TestClosedQueuePairsUseNoCapacity(t *testing.T) {
	const rounds, depth = 20, 16
	pd := domain(t)
	cq, err := pd.Device().CreateCQ(2*depth, nil, 0)
	keep(t, cq, err)
	b := sendBatch(t, depth)
	for id := range uint64(depth) {
		b.Write(id, 0, 0).Signaled()
	}
	for range rounds {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}}, rdma.QueueOptions{})
		require.NoError(t, err)
		loop(t, qp)
		_, err = qp.PostSend(b)
		require.NoError(t, err)
		require.NoError(t, qp.Close())
		assert.Equal(t, cq.Len(), cq.Free())
	}
	wcs := make([]ibv.WC, 2*rounds*depth)
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	assert.Equal(t, rounds*depth, n)
	n, err = cq.Poll(wcs)
	require.NoError(t, err)
	assert.Zero(t, n)
}
