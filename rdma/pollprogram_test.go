// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// A poll with a program releases slots, does not return markers of drains, and returns completions that drains have
// polled. A program of another queue, and a closed program, are rejected.
func TestProgramsPollObjects(t *testing.T) {
	pd := softPD(t)
	create := func() (*CQ, *PollProgram) {
		cq, err := pd.Device().CreateCQEx(&ibv.CQInitAttrEx{CQE: 16,
			WCFlags: ibv.WC_EX_WITH_QP_NUM | ibv.WC_EX_WITH_BYTE_LEN})
		cq = keep(t, cq, err)
		p, err := NewPollProgram(cq.CEx(), 4, ibv.WC_EX_WITH_QP_NUM|ibv.WC_EX_WITH_BYTE_LEN, QueueOptions{})
		return cq, keep(t, p, err)
	}
	cq, p := create()
	other, others := create()
	plain, err := pd.Device().CreateCQ(16, nil, 0)
	plain = keep(t, plain, err)
	for q, reason := range map[*CQ]string{
		other: "the program polls another completion queue", plain: "the queue is not extended",
	} {
		_, err = q.PollProgram(p)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, reason)
	}

	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}, QueueOptions{})
	connectToSelf(t, keep(t, qp, err))
	b := sendBatch(t, 1, 1, 0)
	b.Send(100).Add(mr.SGE(0, 8)).Signaled()
	for round := range 6 { // exceeds the depth of the queues
		_, err = qp.PostRecv(recvs(t, mr, 1))
		require.NoError(t, err, round)
		_, err = qp.PostSend(b)
		require.NoError(t, err, round)
		ids := map[uint64]uint32{}
		for len(ids) < 2 {
			found, err := cq.PollProgram(p)
			require.NoError(t, err)
			for _, c := range found {
				ids[c.WRID] = c.QPNum
			}
		}
		assert.Equal(t, map[uint64]uint32{0: qp.Num(), 100: qp.Num()}, ids)
	}
	assert.Equal(t, 4, qp.SendQueue().Free())
	assert.Equal(t, 4, qp.RecvQueue().Free())

	_, err = qp.PostRecv(recvs(t, mr, 3))
	require.NoError(t, err)
	require.NoError(t, qp.Drain(t.Context()))
	found, err := cq.PollProgram(p)
	require.NoError(t, err)
	require.Len(t, found, 3, "the marker is not returned")
	for i, c := range found {
		assert.Equal(t, Completion{WRID: uint64(i), Status: ibv.WC_WR_FLUSH_ERR, VendorErr: c.VendorErr,
			QPNum: qp.Num()}, c)
	}
	found, err = cq.PollProgram(p)
	require.NoError(t, err)
	assert.Empty(t, found)

	require.NoError(t, others.Close())
	_, err = other.PollProgram(others)
	assert.EqualError(t, err, "program: closed")
	require.NoError(t, qp.Close())
	require.NoError(t, cq.Close())
	_, err = cq.PollProgram(p)
	assert.ErrorIs(t, err, ErrClosed)
}

// Completions that a drain has polled have exactly the values that the program reads.
func TestProgramsReturnDrainedCompletions(t *testing.T) {
	pd := softPD(t)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	for _, flags := range []ibv.CreateCQWCFlags{0, ibv.WC_EX_WITH_QP_NUM} {
		cq, err := pd.Device().CreateCQEx(&ibv.CQInitAttrEx{CQE: 16, WCFlags: flags})
		cq = keep(t, cq, err)
		p, err := cq.NewPollProgram(4)
		p = keep(t, p, err)
		qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}, QueueOptions{})
		connectToSelf(t, keep(t, qp, err))
		_, err = qp.PostRecv(recvs(t, mr, 1))
		require.NoError(t, err)
		require.NoError(t, qp.Drain(t.Context()))
		found, err := cq.PollProgram(p)
		require.NoError(t, err)
		require.Len(t, found, 1)
		want := uint32(0)
		if flags != 0 {
			want = qp.Num()
		}
		assert.Equal(t, want, found[0].QPNum, flags)
		assert.Equal(t, 4, qp.RecvQueue().Free())
	}
}
