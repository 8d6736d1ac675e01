// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

// A target of dynamic connections (DCT) gets its number in RTR, and its completions carry that number.
func TestQPNumAssignedInRTR(t *testing.T) {
	f, d, pd := fakePD(t)
	cq, _ := fakeQP(t, pd)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{Unchecked: true})
	srq = keep(t, srq, err)
	c := fakedevice.Object[ibv.QP](f)
	create := func(*ibv.QPInitAttrEx) (*ibv.QP, error) {
		c.Context, c.QPType = ibv.PtrTo(&f.Context.Context), ibv.QPT_DRIVER
		return c, nil
	}
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(), PD: pd.Ptr(),
		CompMask: ibv.QP_INIT_ATTR_PD}
	target, err := d.CreateQPBy("ibx_create_qp", attr, QueueOptions{}, create, libibverbs.DestroyQP)
	require.NoError(t, err)
	f.Do["ibv_modify_qp"] = func([]uintptr) uintptr {
		c.QPNum, c.State = 0x44, ibv.QPS_RTR
		return 0
	}
	require.NoError(t, target.Modify(&ibv.QPAttr{QPState: ibv.QPS_RTR}, ibv.QP_STATE))
	assert.EqualValues(t, 0x44, target.Num())
	assert.Same(t, srq.queue, cq.queue.trackedAs(0x44).Recv)
	assert.Zero(t, cq.queue.trackedAs(0))
	c.State = ibv.QPS_RESET
	require.NoError(t, target.Close())
}

// A driver queue pair may lack completion queues. It then rejects all posts, even if its capacities are not 0.
func TestDriverQueuePairWithoutCompletionQueues(t *testing.T) {
	f, d, pd := fakePD(t)
	create := func(*ibv.QPInitAttrEx) (*ibv.QP, error) {
		qp := fakedevice.Object[ibv.QP](f)
		qp.Context, qp.QPType = ibv.PtrTo(&f.Context.Context), ibv.QPT_DRIVER
		return qp, nil
	}
	attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_DRIVER, PD: pd.Ptr(), CompMask: ibv.QP_INIT_ATTR_PD,
		Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	qp, err := d.CreateQPBy("ibx_create_qp", attr, QueueOptions{}, create, libibverbs.DestroyQP)
	require.NoError(t, err)
	_, err = qp.PostSend(sendBatch(t, 1, 1, 0))
	assert.ErrorIs(t, err, syscall.EINVAL)
	_, err = qp.PostRecv(recvBatch(t, 1, 1))
	assert.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	require.NoError(t, qp.Close())
}
