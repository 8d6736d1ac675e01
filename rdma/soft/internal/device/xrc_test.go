// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// xrcTestbed is a sender, and a receiving queue pair of an XRC domain with a shared receive queue.
type xrcTestbed struct {
	*testbed
	xrcd     *ibv.XRCD
	srq      *ibv.SRQ
	number   uint32
	recvs    *ibv.CQ // of the shared receive queue
	from, to *ibv.QP
	send     *ibv.CQ
}

func (r *testbed) openXRCD(device int, fd, flags int32) (*ibv.XRCD, error) {
	return verbs.OpenXRCD(r.context[device],
		&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: fd, Oflags: flags})
}

func newXRCTestbed(t *testing.T, entries int) *xrcTestbed {
	r := &xrcTestbed{testbed: newTestbed(t, Options{Virtual: true})}
	var err error
	r.xrcd, err = r.openXRCD(1, -1, impl.OCreate)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.CloseXRCD(r.xrcd)) })
	r.recvs, r.send = r.cq(1, entries), r.cq(0, 16)
	r.srq, err = verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(r.pd[1]), XRCD: ibv.PtrTo(r.xrcd),
		CQ:       ibv.PtrTo(r.recvs),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(r.srq)) })
	number := new(uint32)
	require.NoError(t, verbs.GetSRQNum(r.srq, number))
	r.number = *number
	r.to, err = verbs.CreateQPEx(r.context[1],
		&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(r.xrcd), CompMask: ibv.QP_INIT_ATTR_XRCD})
	require.NoError(t, err)
	r.from = r.qp(0, ibv.QPT_XRC_SEND, testCaps, r.send, nil)
	r.connect(r.from, 1, r.to.QPNum)
	r.toRTR(r.to, 0, r.from.QPNum)
	return r
}

func (r *xrcTestbed) recvShared() {
	require.NoError(r.t, verbs.PostSRQRecv(r.srq, &offHeap[ibv.RecvWR](r.testbed, 1)[0],
		&offHeap[ibv.Ptr[ibv.RecvWR]](r.testbed, 1)[0]))
}

// sent sends a message to a shared receive queue and returns its status.
func (r *xrcTestbed) sent(number uint32) ibv.WCStatus {
	wr := r.testbed.send(1, ibv.WR_SEND)
	wr.QPType.XRC().RemoteSRQN = number
	require.NoError(r.t, r.post(r.from, wr))
	for range 100 { // timers
		if wc, ok := r.tryPoll(r.send); ok {
			return wc.Status
		}
	}
	require.Fail(r.t, "no completion")
	return 0
}

// TestXRCHandles: a receiving queue pair exists until its last handle is destroyed, and all handles get its events
// (ibv_open_qp(3)).
func TestXRCHandles(t *testing.T) {
	r := newXRCTestbed(t, 16)
	number := r.to.QPNum
	open := func() (*ibv.QP, error) {
		return verbs.OpenQP(r.context[1], &ibv.QPOpenAttr{
			CompMask: ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE, QPNum: number,
			XRCD: ibv.PtrTo(r.xrcd), QPType: ibv.QPT_XRC_RECV,
		})
	}
	first, err := open()
	require.NoError(t, err)
	second, err := open()
	require.NoError(t, err)
	require.NoError(t, verbs.DestroyQP(r.to))
	r.recvShared()
	assert.Equal(t, ibv.WC_SUCCESS, r.sent(r.number), "the creating context can be closed")
	r.poll(r.recvs)
	attr, init := new(ibv.QPAttr), new(ibv.QPInitAttr)
	require.NoError(t, verbs.QueryQP(first, attr, ibv.QP_STATE, init))
	assert.Equal(t, ibv.QPS_RTR, attr.QPState)
	assert.Equal(t, ibv.QPT_XRC_RECV, init.QPType)

	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, r.sent(0xabcdef))
	heard := map[*ibv.QP][]ibv.EventType{}
	for range 4 {
		event := &offHeap[ibv.AsyncEvent](r.testbed, 1)[0]
		r.within("one of four events", func() error { return verbs.GetAsyncEvent(r.context[1], event) })
		qp := event.Element.QP().Deref()
		heard[qp] = append(heard[qp], event.EventType)
		require.NoError(t, verbs.AckAsyncEvent(event))
	}
	events := []ibv.EventType{ibv.EVENT_COMM_EST, ibv.EVENT_QP_REQ_ERR}
	assert.Equal(t, map[*ibv.QP][]ibv.EventType{first: events, second: events}, heard)

	require.NoError(t, verbs.DestroyQP(first))
	require.NoError(t, verbs.DestroyQP(second))
	_, err = open()
	assert.ErrorIs(t, err, syscall.EINVAL, "the queue pair is destroyed with its last handle")
}

// TestXRCAnotherDomain: a queue pair receives only into shared receive queues of its XRC domain.
func TestXRCAnotherDomain(t *testing.T) {
	r := newXRCTestbed(t, 16)
	defer func() { require.NoError(t, verbs.DestroyQP(r.to)) }()
	other, err := r.openXRCD(1, -1, impl.OCreate)
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.CloseXRCD(other)) }()
	srq, err := verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(r.pd[1]), XRCD: ibv.PtrTo(other),
		CQ:       ibv.PtrTo(r.recvs),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
	require.NoError(t, verbs.PostSRQRecv(srq, &offHeap[ibv.RecvWR](r.testbed, 1)[0],
		&offHeap[ibv.Ptr[ibv.RecvWR]](r.testbed, 1)[0]))
	number := new(uint32)
	require.NoError(t, verbs.GetSRQNum(srq, number))
	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, r.sent(*number))
	_, received := r.tryPoll(r.recvs)
	assert.False(t, received)
}

// TestOverrunOfSharedReceives: the overrun of a completion queue moves all of its queue pairs to ERR.
func TestOverrunOfSharedReceives(t *testing.T) {
	t.Run("XRC", func(t *testing.T) {
		r := newXRCTestbed(t, 1)
		defer func() { require.NoError(t, verbs.DestroyQP(r.to)) }()
		for range 3 {
			r.recvShared()
		}
		assert.Equal(t, ibv.WC_SUCCESS, r.sent(r.number))
		r.sent(r.number) // the queue has no room for it
		assert.Equal(t, ibv.WC_RETRY_EXC_ERR, r.sent(r.number))
	})
	t.Run("tags", func(t *testing.T) {
		r := newTagTestbed(t, 4, 8)
		require.NoError(t, verbs.ResizeCQ(r.cq, 1))
		for id := range uint64(3) {
			r.recvSRQ(id, 0)
		}
		r.message(ibv.TMH_NO_TAG, 0, nil)
		r.message(ibv.TMH_NO_TAG, 0, nil)
		attr := new(ibv.QPAttr)
		require.NoError(t, verbs.QueryQP(r.p.b, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
		assert.Equal(t, ibv.QPS_ERR, attr.QPState)
	})
}

// TestDrainWithRendezvous: a drain waits until the FIN of a rendezvous is sent.
func TestDrainWithRendezvous(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	r.add(10, 0xa, 0, 64)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xa, 1024, 24) // no receive is posted for the FIN yet
	require.NoError(t, verbs.ModifyQP(r.p.b, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
	assert.EqualValues(t, 77, r.poll(r.p.aRecv).WRID)
	attr := new(ibv.QPAttr)
	require.NoError(t, verbs.QueryQP(r.p.b, attr, ibv.QP_STATE, new(ibv.QPInitAttr)))
	assert.Zero(t, attr.SQDraining)
	assert.NoError(t, verbs.ModifyQP(r.p.b, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
}

// TestXRCUnusedAttributes: attributes of the opposite side are ignored, and attributes of this side are checked.
func TestXRCUnusedAttributes(t *testing.T) {
	r := newXRCTestbed(t, 16)
	bad := &ibv.QPAttr{QPState: ibv.QPS_RTS, MaxRdAtomic: 255, MaxDestRdAtomic: 255, MinRNRTimer: 255, RetryCnt: 255,
		RNRRetry: 255}
	assert.NoError(t, verbs.ModifyQP(r.from, bad, ibv.QP_STATE|ibv.QP_MAX_DEST_RD_ATOMIC|ibv.QP_MIN_RNR_TIMER))
	for _, mask := range []ibv.QPAttrMask{ibv.QP_MAX_QP_RD_ATOMIC, ibv.QP_RETRY_CNT, ibv.QP_RNR_RETRY} {
		assert.ErrorIs(t, verbs.ModifyQP(r.from, bad, ibv.QP_STATE|mask), syscall.EINVAL, "%v", mask)
	}
	assert.ErrorIs(t, verbs.ModifyQP(r.to, bad, ibv.QP_STATE|ibv.QP_MIN_RNR_TIMER), syscall.EINVAL)
	assert.NoError(t, verbs.ModifyQP(r.to, bad, ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_MAX_QP_RD_ATOMIC|
		ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY))
	require.NoError(t, verbs.DestroyQP(r.to))
}

// TestXRCSequenceNumbers: ibv_query_qp returns the current sequence numbers. Other types are tested by the suite that
// is compared with Soft-RoCE, which lacks XRC.
func TestXRCSequenceNumbers(t *testing.T) {
	r := newXRCTestbed(t, 16)
	for n := range uint32(3) {
		attr := new(ibv.QPAttr)
		require.NoError(t, verbs.QueryQP(r.from, attr, ibv.QP_SQ_PSN, new(ibv.QPInitAttr)))
		assert.Equal(t, 77+n, attr.SQPSN)
		require.NoError(t, verbs.QueryQP(r.to, attr, ibv.QP_RQ_PSN, new(ibv.QPInitAttr)))
		assert.Equal(t, 77+n, attr.RQPSN)
		r.recvShared()
		require.Equal(t, ibv.WC_SUCCESS, r.sent(r.number))
		r.poll(r.recvs)
	}
	require.NoError(t, verbs.DestroyQP(r.to))
}
