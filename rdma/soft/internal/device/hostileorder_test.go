// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// newWithBuilders returns an unconnected queue pair with builders.
func (r *testbed) newWithBuilders(kind ibv.QPType, ops ibv.QPCreateSendOpsFlags, cq *ibv.CQ) (*ibv.QP, *ibv.QPEx) {
	qp, err := verbs.CreateQPEx(r.context[0], &ibv.QPInitAttrEx{
		QPType: kind, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), Cap: testCaps, PD: ibv.PtrTo(r.pd[0]),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ops,
	})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyQP(qp)) })
	x, err := verbs.QPToQPEx(qp)
	require.NoError(r.t, err)
	return qp, x
}

// TestSettersBeforeStart: setters before ibv_wr_start are ignored.
func TestSettersBeforeStart(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	cq := r.cq(0, 16)
	_, ud := r.newWithBuilders(ibv.QPT_UD, ibv.QP_EX_WITH_SEND, cq)
	verbs.WRSetUDAddr(ud, r.ah(0, 1), 17, testQKey)
	_, x := r.newWithBuilders(ibv.QPT_XRC_SEND, ibv.QP_EX_WITH_SEND, cq)
	verbs.WRSetXRCSRQN(x, 17)
	require.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL)
}

// TestBuilderNilLists: ibv_wr_complete fails if a list of entries is NULL.
func TestBuilderNilLists(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	_, x := r.newWithBuilders(ibv.QPT_RC, ibv.QP_EX_WITH_SEND, r.cq(0, 16))
	for _, set := range []func(){
		func() { verbs.WRSetSGEList(x, 1, nil) },
		func() { verbs.WRSetInlineDataList(x, 1, nil) },
	} {
		require.NoError(t, verbs.WRStart(x))
		verbs.WRSend(x)
		set()
		require.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL)
	}
}

// TestEndWithoutStartPoll: ibv_next_poll without ibv_start_poll fails, and ibv_end_poll without it is ignored.
func TestEndWithoutStartPoll(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	cq, err := verbs.CreateCQEx(r.context[0], &ibv.CQInitAttrEx{CQE: 4})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq))) }()
	require.Error(t, verbs.NextPoll(cq))
	verbs.EndPoll(cq)
	require.Error(t, verbs.StartPoll(cq, &ibv.PollCQAttr{}))
	verbs.EndPoll(cq)
	require.Error(t, verbs.StartPoll(cq, &ibv.PollCQAttr{}))
}

// TestWaitAfterClose: a goroutine that waits while the descriptor is closed does not read from it, because its number
// may be reused.
func TestWaitAfterClose(t *testing.T) {
	f, err := New(Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var e resource.Events[int]
	require.Zero(t, e.Open())
	e.Push(1)
	e.Close()
	f.Mu.Lock()
	defer f.Unlock()
	_, errno := e.Wait(&f.Core, false, nil)
	require.Equal(t, syscall.EINVAL, errno, "the descriptor is closed")
}
