// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

func TestPartitions(t *testing.T) {
	o := Options{Devices: []DeviceOptions{{PKeys: []uint16{0xffff, 0x1234}}, {PKeys: []uint16{0xffff, 0x9234, 0x1234}}}}
	for _, c := range []struct {
		a, b uint16
		meet bool
	}{{0, 0, true}, {1, 1, true}, {1, 2, false}, {0, 1, false}} {
		s := newTestPair(t, ibv.QPT_UD, o)
		for qp, index := range map[*ibv.QP]uint16{s.p.a: c.a, s.p.b: c.b} {
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
			mask := ibv.QP_STATE | ibv.QP_PKEY_INDEX | ibv.QP_PORT | ibv.QP_QKEY
			require.NoError(t, verbs.ModifyQP(qp,
				&ibv.QPAttr{QPState: ibv.QPS_INIT, PKeyIndex: index, PortNum: 1, QKey: testQKey}, mask))
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RTR}, ibv.QP_STATE))
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE|ibv.QP_SQ_PSN))
		}
		s.recv(s.p.b, 7, s.bufB.sge(0, 64))
		require.NoError(t, s.post(s.p.a, datagram(s.send(1, ibv.WR_SEND), s.ah(0, 1), s.p.b.QPNum, testQKey)))
		_, received := s.tryPoll(s.p.bRecv)
		assert.Equal(t, c.meet, received, "%d to %d", c.a, c.b)
	}
}

// TestXRC: one queue pair sends to several shared receive queues of an XRC domain with two handles. Duplicates are
// detected.
func TestXRC(t *testing.T) {
	t.Run("once", func(t *testing.T) { xrc(t, newTestbed(t, Options{})) })
	t.Run("twice", func(t *testing.T) {
		r := newTestbed(t, Options{Faults: Faults{Duplicate: 1}})
		xrc(t, r)
		assert.EqualValues(t, 3, r.fabric.Counters().Duplicates)
	})
}

func xrc(t *testing.T, r *testbed) {
	fd := int32(-1)
	xrcd, err := verbs.OpenXRCD(r.context[1],
		&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: fd, Oflags: impl.OCreate})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.CloseXRCD(xrcd)) })
	b := r.buffer(1, 4096, allAccess)
	var srqs []*ibv.SRQ
	var cqs []*ibv.CQ
	var numbers []uint32
	for i := range 2 {
		cq := r.cq(1, 16)
		srq, err := verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
			Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(r.pd[1]),
			XRCD: ibv.PtrTo(xrcd), CQ: ibv.PtrTo(cq),
			CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
		number := new(uint32)
		require.NoError(t, verbs.GetSRQNum(srq, number))
		srqs, cqs, numbers = append(srqs, srq), append(cqs, cq), append(numbers, *number)
		wr, sges, bad := &offHeap[ibv.RecvWR](r, 1)[0], offHeap[ibv.SGE](r, 1), &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
		sges[0] = b.sge(i*100, 100)
		*wr = ibv.RecvWR{WRID: uint64(i), SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
		require.NoError(t, verbs.PostSRQRecv(srq, wr, bad))
	}
	ini := &ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(xrcd), CompMask: ibv.QP_INIT_ATTR_XRCD}
	to, err := verbs.CreateQPEx(r.context[1], ini)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(to)) })
	opened, err := verbs.OpenQP(r.context[1], &ibv.QPOpenAttr{
		CompMask: ibv.QP_OPEN_ATTR_NUM | ibv.QP_OPEN_ATTR_XRCD | ibv.QP_OPEN_ATTR_TYPE, QPNum: to.QPNum,
		XRCD: ibv.PtrTo(xrcd), QPType: ibv.QPT_XRC_RECV,
	})
	require.NoError(t, err)
	send := r.cq(0, 16)
	from := r.qp(0, ibv.QPT_XRC_SEND, testCaps, send, nil)
	r.connect(from, 1, to.QPNum)
	r.toRTR(opened, 0, from.QPNum)
	local := r.buffer(0, 64, allAccess)
	copy(local.bytes, "to a queue")
	for i, number := range numbers {
		wr := r.send(uint64(i), ibv.WR_SEND, local.sge(0, 10))
		wr.QPType.XRC().RemoteSRQN = number
		require.NoError(t, r.post(from, wr))
		assert.Equal(t, ibv.WC_SUCCESS, r.poll(send).Status)
		assert.EqualValues(t, i, r.poll(cqs[i]).WRID)
		assert.Equal(t, "to a queue", string(b.bytes[i*100:i*100+10]))
	}
	wr := r.remoteWrite(local, b)
	require.NoError(t, r.post(from, wr))
	assert.Equal(t, ibv.WC_SUCCESS, r.poll(send).Status)
	require.NoError(t, verbs.DestroyQP(opened))
	r.xrcKeys(from, to, send, local, xrcd)
	wr = r.send(9, ibv.WR_SEND, local.sge(0, 10))
	wr.QPType.XRC().RemoteSRQN = 0xabcdef
	require.NoError(t, r.post(from, wr))
	assert.Equal(t, ibv.WC_REM_INV_REQ_ERR, r.poll(send).Status)
}

// xrcKeys checks that a receiving queue pair accepts keys of the protection domain of the addressed shared receive
// queue, and no others.
func (r *testbed) xrcKeys(from, to *ibv.QP, send *ibv.CQ, local *buffer, xrcd *ibv.XRCD) {
	own := r.pd[1]
	other, err := verbs.AllocPD(r.context[1])
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeallocPD(other)) })
	r.pd[1] = other
	b := r.buffer(1, 4096, allAccess)
	r.pd[1] = own
	require.NoError(r.t, r.post(from, r.remoteWrite(local, b)))
	assert.Equal(r.t, ibv.WC_REM_ACCESS_ERR, r.poll(send).Status)
	assert.Equal(r.t, make([]byte, 4096), b.bytes)
	for _, qp := range []*ibv.QP{from, to} {
		require.NoError(r.t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	}
	r.connect(from, 1, to.QPNum)
	r.toRTR(to, 0, from.QPNum)
}

func (r *testbed) remoteWrite(from, to *buffer) *ibv.SendWR {
	wr := r.send(5, ibv.WR_RDMA_WRITE, from.sge(0, 10))
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: to.at(1000), RKey: to.mr.RKey}
	return wr
}

// TestSharedReceives: the limit event is delivered once when receives run out.
func TestSharedReceives(t *testing.T) {
	r := newTestbed(t, Options{})
	srq, err := verbs.CreateSRQ(r.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	send, recv := r.cq(0, 16), r.cq(1, 16)
	var from []*ibv.QP
	for range 2 {
		qp := r.qp(0, ibv.QPT_RC, testCaps, send, send)
		to, err := verbs.CreateQP(r.pd[1],
			&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(recv), RecvCQ: ibv.PtrTo(recv), SRQ: ibv.PtrTo(srq)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(to)) })
		r.connect(qp, 1, to.QPNum)
		r.connect(to, 0, qp.QPNum)
		assert.ErrorIs(t, r.tryRecv(to, 1), syscall.EINVAL, "the queue pair has no receive queue")
		from = append(from, qp)
	}
	post := func(id uint64) error {
		wr := &offHeap[ibv.RecvWR](r, 1)[0]
		wr.WRID = id
		return verbs.PostSRQRecv(srq, wr, &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0])
	}
	for id := range uint64(4) {
		require.NoError(t, post(id))
	}
	assert.ErrorIs(t, post(4), syscall.ENOMEM)
	require.NoError(t, verbs.ModifySRQ(srq, &ibv.SRQAttr{SRQLimit: 3}, ibv.SRQ_LIMIT))
	for i := range 3 {
		require.NoError(t, r.post(from[i%2], r.send(uint64(i), ibv.WR_SEND)))
		r.poll(send)
		assert.EqualValues(t, i, r.poll(recv).WRID)
	}
	require.NoError(t, verbs.AckAsyncEvent(r.asyncEvent(1, ibv.EVENT_SRQ_LIMIT_REACHED)))
	attr := new(ibv.SRQAttr)
	require.NoError(t, verbs.QuerySRQ(srq, attr))
	assert.Zero(t, attr.SRQLimit, "the limit must be armed again")
}

// TestSharedReceivesOutliveCompletionQueues: receives whose completions were not polled free their slots when the
// completion queue is destroyed.
func TestSharedReceivesOutliveCompletionQueues(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
	attr := &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}}
	srq, err := verbs.CreateSRQ(r.pd[1], attr)
	require.NoError(t, err)
	t.Cleanup(func() { verbs.DestroySRQ(srq) })
	b := r.buffer(1, 4096, allAccess)
	a := r.buffer(0, 4096, allAccess)
	for range 3 {
		cqa, _ := verbs.CreateCQ(r.context[0], 16, 0, nil, 0)
		cqb, _ := verbs.CreateCQ(r.context[1], 16, 0, nil, 0)
		qa, err := verbs.CreateQP(r.pd[0],
			&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cqa), RecvCQ: ibv.PtrTo(cqa), Cap: testCaps})
		require.NoError(t, err)
		qb, err := verbs.CreateQP(r.pd[1],
			&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cqb), RecvCQ: ibv.PtrTo(cqb), Cap: testCaps,
				SRQ: ibv.PtrTo(srq)})
		require.NoError(t, err)
		r.connect(qa, 1, qb.QPNum)
		r.connect(qb, 0, qa.QPNum)
		for i := range 4 {
			wr, bad := &offHeap[ibv.RecvWR](r, 1)[0], &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
			s := offHeap[ibv.SGE](r, 1)
			s[0] = b.sge(0, 64)
			*wr = ibv.RecvWR{WRID: uint64(i), SGList: ibv.PtrTo(&s[0]), NumSGE: 1}
			require.NoError(t, verbs.PostSRQRecv(srq, wr, bad), "receive %d", i)
			require.NoError(t, r.post(qa, r.send(1, ibv.WR_SEND, a.sge(0, 8))))
		}
		require.NoError(t, verbs.DestroyQP(qa))
		require.NoError(t, verbs.DestroyQP(qb))
		require.NoError(t, verbs.DestroyCQ(cqa))
		require.NoError(t, verbs.DestroyCQ(cqb))
	}
}

// TestLastWQEReached: a queue pair with a shared receive queue raises EVENT_QP_LAST_WQE_REACHED once when it moves to
// ERR. A queue pair with a receive queue does not raise it.
func TestLastWQEReached(t *testing.T) {
	for _, shares := range []bool{true, false} {
		r := newTestbed(t, Options{})
		srq, err := verbs.CreateSRQ(r.pd[0], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
		cq := r.cq(0, 16)
		init := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq), Cap: testCaps}
		var want []impl.AsyncEvent
		if shares {
			init.SRQ = ibv.PtrTo(srq)
		}
		one, err := verbs.CreateQP(r.pd[0], init)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(one)) })
		if shares {
			q := impl.Find[impl.QP](mem.AddressOf(one))
			want = []impl.AsyncEvent{{Kind: ibv.EVENT_QP_LAST_WQE_REACHED, Element: mem.AddressOf(one),
				Reports: &q.Asyncs}}
		}
		r.connect(one, 1, 17)
		for range 2 {
			require.NoError(t, verbs.ModifyQP(one, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		}
		assert.Equal(t, want, impl.Find[impl.Context](mem.AddressOf(r.context[0])).Async.Queue)
	}
}

// TestUnconnectedSenders: a queue pair accepts only messages of its peer, and a datagram arrives only at the device of
// its address.
func TestUnconnectedSenders(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	cq := s.cq(0, 16)
	stranger := s.qp(0, ibv.QPT_RC, testCaps, cq, cq)
	s.connect(stranger, 1, s.p.b.QPNum)
	s.recv(s.p.b, 7)
	require.NoError(t, s.post(stranger, s.send(1, ibv.WR_SEND)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR}, s.statuses(cq))
	assert.Empty(t, s.statuses(s.p.bRecv))

	u := newTestPair(t, ibv.QPT_UD, Options{})
	u.recv(u.p.b, 7, u.bufB.sge(0, 64))
	require.NoError(t, u.post(u.p.a, datagram(u.send(1, ibv.WR_SEND), u.ah(0, 0), u.p.b.QPNum, testQKey)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_SUCCESS}, u.statuses(u.p.aSend))
	assert.Empty(t, u.statuses(u.p.bRecv))
}
