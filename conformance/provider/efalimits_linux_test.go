// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/efadv"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// TestEFALimits checks that values that libefa would truncate or lose are rejected. Without checks, a 17-bit queue pair
// number addresses another queue pair, and a receive without entries never completes. Package native itself rejects
// both.
func TestEFALimits(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, 0)
	a, b := g.qps[0], g.qps[1]
	ah, qpn, qkey := g.to(1)
	batch, err := rdma.NewSendBatch(1, 1, 0)
	keep(t, batch, err)
	batch.Send(7).Add(g.mrs[0].SGE(0, 8)).UD(ah, 1<<16|qpn, qkey).Signaled()
	_, err = a.PostSend(batch)
	require.ErrorContains(t, err, "has more than 16 bits")
	p, err := a.NewWRProgram()
	require.NoError(t, err)
	p.Send(7).Add(g.mrs[0].SGE(0, 8)).UD(ah, 1<<16|qpn, qkey).Signaled()
	require.ErrorContains(t, a.PostProgram(p), "has more than 16 bits")
	none, err := rdma.NewRecvBatch(1, 1)
	keep(t, none, err)
	none.Recv(99)
	_, err = b.PostRecv(none)
	require.ErrorContains(t, err, "no entries; the device's library would count the receive but never pass it to the "+
		"device")

	free, err := rdma.NewRecvQueue(b.C(), rdma.QueueOptions{Unchecked: true})
	require.NoError(t, err)
	_, err = free.Post(none)
	if native := os.Getenv(envInside) == pathNative; native {
		require.ErrorIs(t, err, syscall.EINVAL)
		cut, err := rdma.NewSendQueue(a.C(), rdma.QueueOptions{Unchecked: true})
		require.NoError(t, err)
		_, err = cut.Post(batch)
		require.ErrorIs(t, err, syscall.EINVAL)
		return
	}
	require.NoError(t, err)
	receive(t, b.PostRecv, g.mrs[1].SGE(size, size))
	cut, err := rdma.NewSendQueue(a.C(), rdma.QueueOptions{Unchecked: true})
	require.NoError(t, err)
	_, err = cut.Post(batch)
	require.NoError(t, err)
	success(t, b.RecvCQ(), ibv.WC_RECV, 100) // not 99, although it was posted first
	success(t, a.SendCQ(), ibv.WC_SEND, 7)
}

// TestEFADestroyedQueuePair checks that a poll skips completions of a destroyed queue pair. libefa's poll fails at such
// a completion; package native's does not. Completions of a queue pair that was moved to RESET would crash libefa, so
// package rdma polls them first.
func TestEFADestroyedQueuePair(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, 0)
	b, cq := g.qps[1], g.qps[0].SendCQ()
	ah, qpn, qkey := g.to(1)
	create := func() *ibv.QP {
		qp, err := libefa.CreateDriverQP(g.pds[0].C(), &ibv.QPInitAttr{QPType: ibv.QPT_DRIVER, SendCQ: cq.Ptr(),
			RecvCQ: cq.Ptr(), Cap: room}, uint32(efadv.QP_DRIVER_TYPE_SRD))
		require.NoError(t, err)
		attr := ibv.QPAttr{PortNum: 1, QKey: key}
		for j, mask := range []ibv.QPAttrMask{ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_QKEY, 0, ibv.QP_SQ_PSN} {
			attr.QPState = ibv.QPS_INIT + ibv.QPState(j)
			require.NoError(t, verbs.ModifyQP(qp, &attr, ibv.QP_STATE|mask))
		}
		return qp
	}
	leave := func(qp *ibv.QP, id uint64) { // leave leaves an unpolled completion in the queue.
		receive(t, b.PostRecv, g.mrs[1].SGE(0, size))
		wr := &ibv.SendWR{WRID: id, Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}
		*wr.WR.UD() = ibv.SendUD{AH: ah, RemoteQPN: qpn, RemoteQKey: qkey}
		require.NoError(t, verbs.PostSend(qp, wr, new(ibv.Ptr[ibv.SendWR])))
		success(t, b.RecvCQ(), ibv.WC_RECV, 100)
		_, err := g.device.Port(1) // both completions are written before the device executes a command
		require.NoError(t, err)
	}
	polled := func() (int, error) { return verbs.PollCQ(cq.C(), 1, new(ibv.WC)) }

	short := create()
	leave(short, 2)
	require.NoError(t, verbs.DestroyQP(short))
	if os.Getenv(envInside) != pathNative {
		_, err := polled()
		assert.ErrorContains(t, err, "ibv_poll_cq", "after the end")
	}
	n, err := polled()
	require.NoError(t, err)
	assert.Zero(t, n, "the completion is skipped")

	local := g.qps[0]
	for id := range uint64(20) {
		leave(local.C(), id)
		require.NoError(t, local.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		g.ready(t, local, 7)
		success(t, cq, ibv.WC_SEND, id)
	}
}
