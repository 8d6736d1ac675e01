// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"math/bits"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
)

// TestTransitions: ibv_modify_qp follows the generated table, requires the attributes listed there, and changes nothing
// if it fails.
func TestTransitions(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	cq := r.cq(0, 16)
	states := []ibv.QPState{ibv.QPS_RESET, ibv.QPS_INIT, ibv.QPS_RTR, ibv.QPS_RTS, ibv.QPS_SQD, ibv.QPS_ERR}
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD} {
		for _, from := range states {
			for _, to := range states {
				required, _, ok := ibv.ModifyQPMask(kind, from, to)
				try := func(mask ibv.QPAttrMask) error {
					qp, err := verbs.CreateQP(r.pd[0],
						&ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), Cap: testCaps})
					require.NoError(t, err)
					defer func() { require.NoError(t, verbs.DestroyQP(qp)) }()
					r.bring(qp, from)
					attr := &ibv.QPAttr{
						QPState: to, CurQPState: from, PathMTU: ibv.MTU_1024, QKey: testQKey, DestQPNum: qp.QPNum,
						AHAttr: r.av(0), PortNum: 1, MaxRdAtomic: 1,
						MaxDestRdAtomic: 1, MinRNRTimer: 1, Timeout: 14, RetryCnt: 1, RNRRetry: 1,
					}
					err = verbs.ModifyQP(qp, attr, mask)
					now := new(ibv.QPAttr)
					require.NoError(t, verbs.QueryQP(qp, now, ibv.QP_STATE, new(ibv.QPInitAttr)))
					if err == nil {
						assert.Equal(t, to, now.QPState)
					} else {
						assert.ErrorIs(t, err, syscall.EINVAL)
						assert.Equal(t, from, now.QPState)
					}
					return err
				}
				all := required | ibv.QP_STATE
				if err := try(all); ok {
					assert.NoError(t, err, "%v: %v to %v", kind, from, to)
				} else {
					assert.Error(t, err, "%v: %v to %v", kind, from, to)
					continue
				}
				for rest := uint32(required &^ ibv.QP_STATE); rest != 0; rest &= rest - 1 {
					one := ibv.QPAttrMask(1 << bits.TrailingZeros32(rest))
					assert.Error(t, try(all&^one), "%v: %v to %v without %v", kind, from, to, one)
				}
			}
		}
	}
}

// bring moves a queue pair, connected to itself, from RESET to a state.
func (r *testbed) bring(qp *ibv.QP, to ibv.QPState) {
	switch to {
	case ibv.QPS_RESET:
		return
	case ibv.QPS_INIT:
		r.toInit(qp)
		return
	}
	r.toRTR(qp, 0, qp.QPNum)
	if to == ibv.QPS_RTR {
		return
	}
	r.toRTS(qp)
	if to != ibv.QPS_RTS {
		require.NoError(r.t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: to}, ibv.QP_STATE))
	}
}

func (r *testbed) toInit(qp *ibv.QP) {
	attr := &ibv.QPAttr{QPState: ibv.QPS_INIT, PortNum: 1, QKey: testQKey}
	mask := ibv.QP_STATE | ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_ACCESS_FLAGS
	if qp.QPType == ibv.QPT_UD {
		mask = ibv.QP_STATE | ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_QKEY
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// TestQueryQP: ibv_query_qp returns the attributes that were set, with the hop limit that the kernel chooses.
func TestQueryQP(t *testing.T) {
	r := newTestbed(t, Options{})
	cq := r.cq(0, 16)
	init := &ibv.QPInitAttr{QPContext: 0x1234, QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		Cap: testCaps, SQSigAll: 1}
	want := *init
	qp, err := verbs.CreateQP(r.pd[0], init)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(qp)) })
	assert.Equal(t, want, *init, "the requested capacities")
	r.connect(qp, 1, 0x123)
	attr, got := new(ibv.QPAttr), new(ibv.QPInitAttr)
	require.NoError(t, verbs.QueryQP(qp, attr, ibv.QP_STATE, got))
	assert.Equal(t, want, *got)
	path := r.av(1)
	path.GRH.HopLimit = engine.HopLimit
	assert.Equal(t, ibv.QPAttr{
		QPState: ibv.QPS_RTS, CurQPState: ibv.QPS_RTS, PathMTU: ibv.MTU_1024, RQPSN: 77, SQPSN: 77, DestQPNum: 0x123,
		QPAccessFlags: allAccess, Cap: testCaps,
		AHAttr: path, AltAHAttr: ibv.AHAttr{IsGlobal: 1}, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MinRNRTimer: 1,
		PortNum: 1, Timeout: 14, RetryCnt: 2, RNRRetry: 2,
	}, *attr)
}

// TestReconnectOneSide: the sequence numbers of a reset queue pair do not match those of its peer, which was not reset.
func TestReconnectOneSide(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	p := r.pair(ibv.QPT_RC)
	b := r.buffer(1, 64, allAccess)
	a := r.buffer(0, 64, allAccess)
	r.recv(p.b, 1, b.sge(0, 8))
	require.NoError(t, r.post(p.a, r.send(1, ibv.WR_SEND, a.sge(0, 8))))
	assert.Equal(t, ibv.WC_SUCCESS, r.poll(p.aSend).Status)
	require.NoError(t, verbs.ModifyQP(p.a, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	r.connect(p.a, 1, p.b.QPNum)
	r.recv(p.b, 2, b.sge(0, 8))
	require.NoError(t, r.post(p.a, r.send(2, ibv.WR_SEND, a.sge(0, 8))))
	r.fabric.Advance(time.Minute)
	assert.Equal(t, ibv.WC_RETRY_EXC_ERR, r.poll(p.aSend).Status)
}

// A negative result keeps its sign on 32-bit machines.
func TestGIDTableTooSmall(t *testing.T) {
	r := newTestbed(t, Options{})
	n, err := verbs.QueryGIDTable(r.context[0], new(ibv.GIDEntry), 0, 0)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.Negative(t, n)
}

// TestDrainEnds: sq_draining is only set in SQD.
func TestDrainEnds(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND, s.bufA.sge(0, 8)))) // the peer has no receive
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	draining := func() uint8 {
		attr := new(ibv.QPAttr)
		require.NoError(t, verbs.QueryQP(s.p.a, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
		return attr.SQDraining
	}
	assert.EqualValues(t, 1, draining())
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	assert.Zero(t, draining())
}
