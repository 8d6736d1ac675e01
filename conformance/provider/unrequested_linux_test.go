// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/rdma"
)

// newSendOnlyQP creates a queue pair only for sends, connected to itself, with a window and its region.
func newSendOnlyQP(t *testing.T, device *rdma.Device, o rdma.QueueOptions) (*rdma.QP, func(b *rdma.SendBatch)) {
	t.Helper()
	pd, err := device.AllocPD()
	keep(t, pd, err)
	channel, err := device.CreateCompChannel()
	keep(t, channel, err)
	cq, err := device.CreateCQ(64, channel, 0)
	keep(t, cq, err)
	mr, err := pd.RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_MW_BIND)
	keep(t, mr, err)
	window, err := pd.AllocMW(ibv.MW_TYPE_2)
	keep(t, window, err)
	qp, err := device.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap:          ibv.QPCap{MaxSendWR: 15, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
		SendOpsFlags: ibv.QP_EX_WITH_SEND}, o)
	keep(t, qp, err)
	local, err := qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, qp.Connect(local))
	return qp, func(b *rdma.SendBatch) {
		b.BindMW(2, window.Ptr(), window.NextRKey(), ibv.MWBindInfo{MR: mr.Ptr(), Addr: mr.Address(), Length: 8,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE})
	}
}

// TestUnrequestedOperations posts operations that were not requested at creation. libmlx5 sizes its ring for the
// requested operations but posts any. Without checks, a long list overwrites its own beginning; with checks, the
// operation is rejected.
func TestUnrequestedOperations(t *testing.T) {
	if !inside(t) {
		return
	}
	device := openDevice(t)
	qp, bind := newSendOnlyQP(t, device, rdma.QueueOptions{})
	b, err := rdma.NewSendBatch(16, 1, 0)
	keep(t, b, err)
	bind(b)
	_, err = qp.PostSend(b)
	assert.ErrorContains(t, err, "the queue pair was created without IBV_WR_BIND_MW")
	receive(t, qp.PostRecv, ibv.SGE{})
	send(t, qp, func(b *rdma.SendBatch) { b.Send(1).Signaled() })
	for range 2 {
		wc := next(t, qp.SendCQ())
		require.NoError(t, rdma.CompletionErr(&wc))
	}
	if os.Getenv(envInside) == pathGo {
		return // would break the same queue pair
	}
	qp, bind = newSendOnlyQP(t, device, rdma.QueueOptions{Unchecked: true})
	b.Reset()
	b.Send(1).Signaled()
	for b.Len() < b.Cap() {
		bind(b)
	}
	n, err := qp.PostSend(b)
	require.NoError(t, err)
	var dv mlx5dv.QP
	require.NoError(t, libmlx5.InitObj(&mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(qp.C()), Out: ibv.PtrTo(&dv)}},
		mlx5dv.OBJ_QP))
	const ofBind = 3 // number of blocks of a bind
	assert.Less(t, int(dv.SQ.WQECnt), 1+(n-1)*ofBind, "blocks of the ring, and those of the list")
	first := ibv.Ptr[[4]byte](dv.SQ.Buf).Deref()
	assert.EqualValues(t, mlx5dv.MLX5_OPCODE_UMR, first[3], "block of the send")
}
