// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// TestMisused makes C functions post to or poll queues of the data path in Go, which is not allowed. Slow operations
// must detect it and name the queue. Closing correctly used queues must not report it.
func TestMisused(t *testing.T) {
	if !insideReleases(t, pathGo) {
		return
	}
	device := openDevice(t)
	for name, test := range map[string]func(*testing.T, *misuse){
		"sends": misusedSends, "sends over others": misusedRing, "receives": misusedReceives,
		"polls": misusedPolls, "shared receives": misusedShared, "a stranger": misusedByForeignQP,
	} {
		t.Run(name, func(t *testing.T) { test(t, newMisuse(t, device)) })
	}
}

// misuse is two connected queue pairs with separate completion queues, and a shared receive queue.
type misuse struct {
	device *rdma.Device
	qps    [2]*rdma.QP
	mr     *rdma.MR
}

const misusedDepth = 8 // capacity in requests

func newMisuse(t *testing.T, device *rdma.Device) *misuse {
	m := &misuse{device: device}
	var mrs [2]*rdma.MR
	for i := range m.qps {
		var err error
		m.qps[i], err = device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: misusedDepth, MaxRecvWR: misusedDepth,
			MaxSendSGE: 1, MaxRecvSGE: 1}})
		require.NoError(t, err)
		t.Cleanup(func() { m.qps[i].Close() })
		mrs[i], err = m.qps[i].RegMR(make([]byte, size), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
		require.NoError(t, err)
	}
	for i := range m.qps {
		peer, err := m.qps[1-i].Endpoint()
		require.NoError(t, err)
		require.NoError(t, m.qps[i].Connect(peer))
	}
	m.mr = mrs[0]
	return m
}

// writes posts n requests from Go, one by one, and polls their completions.
func (m *misuse) writes(t *testing.T, n int) {
	for i := range n {
		receive(t, m.qps[1].PostRecv, ibv.SGE{})
		send(t, m.qps[0], func(b *rdma.SendBatch) { b.Send(uint64(i)).Signaled() })
		next(t, m.qps[0].SendCQ())
		next(t, m.qps[1].RecvCQ())
	}
}

// sendInC posts one request through libmlx5.
func (m *misuse) sendInC(t *testing.T) {
	wr := &ibv.SendWR{WRID: 99, Opcode: ibv.WR_SEND, SendFlags: ibv.SEND_SIGNALED}
	require.NoError(t, libibverbs.PostSend(m.qps[0].C(), wr, new(ibv.Ptr[ibv.SendWR])))
}

// found checks that an error names the queue and the misuse.
func found(t *testing.T, err error, queue interface{ String() string }, desc string) {
	t.Helper()
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.ErrorContains(t, err, desc)
	assert.ErrorContains(t, err, ": use it only through package rdma, or create it without a Path")
	if queue != nil {
		name, _, _ := strings.Cut(queue.String(), " on ")
		assert.ErrorContains(t, err, name)
	}
}

func query(q *rdma.QP) error {
	_, _, err := q.Query(ibv.QP_STATE)
	return err
}

func misusedSends(t *testing.T, m *misuse) {
	q := m.qps[0]
	m.writes(t, 3)
	require.NoError(t, query(q))
	m.sendInC(t)
	const what = "C has also posted sends to the queue pair, or moved it to RESET: its doorbell record has " +
		"1 as the next block, and package rdma has 3"
	found(t, query(q), q, what)
	found(t, q.Drain(t.Context()), q, what)
	found(t, q.Close(), q, what)
	assert.Contains(t, q.String(), "closed")
	assert.NoError(t, q.Close())
}

func misusedRing(t *testing.T, m *misuse) {
	q := m.qps[0]
	m.writes(t, 300) // several rounds of the ring
	require.NoError(t, query(q))
	wr := &ibv.SendWR{WRID: 99, Opcode: ibv.WR_SEND}
	require.NoError(t, libibverbs.PostSend(q.C(), wr, new(ibv.Ptr[ibv.SendWR])))
	send(t, q, func(b *rdma.SendBatch) { b.Send(1).Signaled() })
	found(t, query(q), q, "has a different request")
}

func misusedReceives(t *testing.T, m *misuse) {
	q := m.qps[0]
	receive(t, q.PostRecv, m.mr.SGE(0, 1), m.mr.SGE(1, 1))
	require.NoError(t, query(q))
	require.NoError(t, libibverbs.PostRecv(q.C(), &ibv.RecvWR{}, new(ibv.Ptr[ibv.RecvWR])))
	found(t, query(q), q, "C has also posted receives to the queue pair, or moved it to RESET: its doorbell record "+
		"counts 1, and package rdma counts 2")
}

func misusedPolls(t *testing.T, m *misuse) {
	q, cq := m.qps[0], m.qps[0].SendCQ()
	m.writes(t, 2)
	require.NoError(t, cq.ReqNotify(false))
	for i := range misusedDepth {
		send(t, q, func(b *rdma.SendBatch) { b.Write(uint64(i), 0, 0).Signaled() })
	}
	wc := new(ibv.WC)
	for n := 0; n == 0; { // C polls a completion for which Go waits
		var err error
		n, err = libibverbs.PollCQ(cq.C(), 1, wc)
		if err != nil {
			break
		}
	}
	const what = "C has also polled the completion queue: its doorbell record counts "
	found(t, cq.ReqNotify(false), cq, what)
	b, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer b.Close()
	b.Send(1)
	_, err = q.PostSend(b)
	found(t, err, nil, what)
	found(t, query(q), q, what)
}

func misusedShared(t *testing.T, m *misuse) {
	srq, err := m.qps[0].PD().CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	receive(t, srq.PostRecv, m.mr.SGE(0, 1), m.mr.SGE(1, 1))
	_, err = srq.Query()
	require.NoError(t, err)
	for range 2 { // leave the doorbell record as Go wrote it
		require.NoError(t, libibverbs.PostSRQRecv(srq.C(), &ibv.RecvWR{}, new(ibv.Ptr[ibv.RecvWR])))
	}
	const what = "C has also posted receives to the queue: its doorbell record counts 2, and package rdma counts 2"
	_, err = srq.Query()
	found(t, err, srq, what)
	found(t, srq.Close(), srq, what)
}

func misusedByForeignQP(t *testing.T, m *misuse) {
	cq := m.qps[0].SendCQ()
	c, err := libibverbs.CreateQP(m.qps[0].PD().C(), &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(),
		RecvCQ: cq.Ptr(), Cap: ibv.QPCap{MaxRecvWR: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, libibverbs.DestroyQP(c)) }()
	require.NoError(t, libibverbs.ModifyQP(c, &ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1},
		ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
	require.NoError(t, libibverbs.PostRecv(c, &ibv.RecvWR{}, new(ibv.Ptr[ibv.RecvWR])))
	require.NoError(t, libibverbs.ModifyQP(c, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	n := 0
	for ; n == 0 && err == nil; n, err = cq.Poll(make([]ibv.WC, 1)) {
	}
	found(t, err, cq, "C has created queue pair ")
}
