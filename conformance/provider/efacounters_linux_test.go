// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestEFACounters checks that completion counters count successes and failures of the operations for which they were
// attached to a queue pair, both its own operations and those of its peers.
func TestEFACounters(t *testing.T) {
	if !insideEFA(t) {
		return
	}
	g := newSRD(t, 0)
	caps, err := g.device.CompCntrCaps()
	require.NoError(t, err)
	assert.NotZero(t, caps.MaxCounters)
	counted := []ibv.QPAttachCompCntrOp{ibv.QP_ATTACH_COMP_CNTR_OP_SEND, ibv.QP_ATTACH_COMP_CNTR_OP_RECV,
		ibv.QP_ATTACH_COMP_CNTR_OP_RDMA_READ, ibv.QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
		ibv.QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, ibv.QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE}
	counters := make([]*rdma.CompCntr, len(counted))
	a, b := g.qps[0], g.qps[1]
	for _, qp := range g.qps {
		require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	}
	for i, op := range counted {
		counters[i], err = g.device.CreateCompCntr(&ibv.CompCntrInitAttr{})
		keep(t, counters[i], err)
		qp := a
		if op == ibv.QP_ATTACH_COMP_CNTR_OP_RECV || op == ibv.QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ ||
			op == ibv.QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE {
			qp = b
		}
		require.NoError(t, qp.AttachCompCntr(counters[i], op))
		require.Error(t, qp.AttachCompCntr(counters[i], op), "already counted")
	}
	t.Cleanup(func() { assert.NoError(t, rdma.CloseAll(nil, a, b)) }) // closed before the counters
	g.ready(t, a, 7)
	g.ready(t, b, 7)
	ah, qpn, qkey := g.to(1)
	local, peer := g.mrs[0], g.mrs[1]
	const n = 10
	for range n {
		receive(t, b.PostRecv, peer.SGE(0, size))
		program(t, a, func(p *rdma.WRProgram) {
			p.Send(1).Add(local.SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
			p.Read(2, peer.Address(), peer.RKey()).Add(local.SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
			p.Write(3, peer.Address(), peer.RKey()).Add(local.SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
			p.Write(4, peer.Address(), peer.RKey()^1).Add(local.SGE(0, 8)).UD(ah, qpn, qkey).Signaled()
		})
		for range 4 {
			next(t, a.SendCQ())
		}
		success(t, b.RecvCQ(), ibv.WC_RECV, 100)
	}
	for i, want := range [][2]uint64{{n, 0}, {n, 0}, {n, 0}, {n, 0}, {n, n}, {n, 0}} {
		done, err := counters[i].Read()
		require.NoError(t, err)
		failed, err := counters[i].ReadErr()
		require.NoError(t, err)
		assert.Equal(t, want, [2]uint64{done, failed}, "%v", counted[i])
	}
	require.NoError(t, counters[0].Set(5))
	require.NoError(t, counters[0].Inc(7))
	require.NoError(t, counters[0].SetErr(1))
	require.NoError(t, counters[0].IncErr(2))
	done, err := counters[0].Read()
	require.NoError(t, err)
	failed, err := counters[0].ReadErr()
	require.NoError(t, err)
	assert.Equal(t, [2]uint64{12, 3}, [2]uint64{done, failed})
}
