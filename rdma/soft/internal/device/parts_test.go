// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// packet delivers the next packet of a message to a queue pair.
func (r *testbed) packet(q *impl.QP, data []byte, m message.Request) {
	m.From, m.To, m.PKey, m.DestQP, m.Packets = q.Out.To, q.Out.From, 0xffff, q.Number, 1
	m.PSN, m.Transport = q.Receiver.Expects, q.ExpectsOf
	if m.Length == 0 {
		m.Length = uint64(len(data))
	}
	if len(data) > 0 {
		m.Payload = []mem.Segment{{Base: mem.AddressOf(&data[0]), Length: uint64(len(data))}}
	}
	r.fabric.Deliver(func() { q.Device.Request(&m) })
}

// TestEndlessTaggedMessage: a tagged message that never ends is only received up to the size of the largest buffer.
func TestEndlessTaggedMessage(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	r := newTagTestbed(t, 4, 4)
	r.add(10, 0xa, 0, 3000)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.recvSRQ(1, 3000)
	q := impl.FindQP(mem.AddressOf(r.p.b))
	data := offHeap[byte](r.testbed, 1024)
	data[0], data[15] = byte(ibv.TMH_EAGER), 0xa
	require.EqualValues(t, 3016, q.SRQ.Greatest())
	for i := 0; i < 1000 && q.State != ibv.QPS_ERR; i++ {
		r.packet(q, data, message.Request{Opcode: ibv.WR_SEND, Continues: i > 0, More: true})
		assert.LessOrEqual(t, cap(q.Part.Whole), 8192)
	}
	require.Equal(t, ibv.QPS_ERR, q.State)
	assert.Nil(t, q.Part.Whole)
	r.completed(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_LOC_LEN_ERR)
}

// TestIncompleteMessageReleasesReceive: destroying the queue pair releases the shared receive of an incomplete message.
func TestIncompleteMessageReleasesReceive(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	r := newTestbed(t, Options{Virtual: true})
	srq, err := verbs.CreateSRQ(r.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 1, MaxSGE: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, verbs.DestroySRQ(srq)) }()
	b, cq := r.buffer(1, 4096, allAccess), r.cq(1, 16)
	a := r.qp(0, ibv.QPT_RC, testCaps, r.cq(0, 16), r.cq(0, 16))
	data := offHeap[byte](r, 1024)
	for range 3 {
		to, err := verbs.CreateQP(r.pd[1], &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq),
			RecvCQ: ibv.PtrTo(cq), SRQ: ibv.PtrTo(srq), Cap: testCaps})
		require.NoError(t, err)
		r.connect(to, 0, a.QPNum)
		wr, sges, bad := &offHeap[ibv.RecvWR](r, 1)[0], offHeap[ibv.SGE](r, 1), &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
		sges[0] = b.sge(0, 4096)
		*wr = ibv.RecvWR{SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
		require.NoError(t, verbs.PostSRQRecv(srq, wr, bad), "the queue is full")
		q := impl.FindQP(mem.AddressOf(to))
		r.packet(q, data, message.Request{Opcode: ibv.WR_SEND, More: true})
		require.True(t, q.Part.Held)
		require.NoError(t, verbs.DestroyQP(to))
	}
}

// TestDestroySRQDuringMessage: an XRC shared receive queue can be destroyed while a message to it is incomplete.
func TestDestroySRQDuringMessage(t *testing.T) {
	t.Setenv(wireVariable, "packets")
	for _, more := range []bool{true, false} {
		r := newTestbed(t, Options{Virtual: true})
		xrcd, err := verbs.OpenXRCD(r.context[1],
			&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1, Oflags: impl.OCreate})
		require.NoError(t, err)
		cq := r.cq(1, 16)
		srq, err := verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
			Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(r.pd[1]),
			XRCD: ibv.PtrTo(xrcd), CQ: ibv.PtrTo(cq),
			CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ})
		require.NoError(t, err)
		number := new(uint32)
		require.NoError(t, verbs.GetSRQNum(srq, number))
		b := r.buffer(1, 4096, allAccess)
		wr, sges, bad := &offHeap[ibv.RecvWR](r, 1)[0], offHeap[ibv.SGE](r, 1), &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
		sges[0] = b.sge(0, 4096)
		*wr = ibv.RecvWR{SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
		require.NoError(t, verbs.PostSRQRecv(srq, wr, bad))
		to, err := verbs.CreateQPEx(r.context[1],
			&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(xrcd), CompMask: ibv.QP_INIT_ATTR_XRCD})
		require.NoError(t, err)
		from := r.qp(0, ibv.QPT_XRC_SEND, testCaps, r.cq(0, 16), nil)
		r.toRTR(to, 0, from.QPNum)
		q := impl.FindQP(mem.AddressOf(to))
		data := offHeap[byte](r, 1024)
		r.packet(q, data, message.Request{Opcode: ibv.WR_SEND, More: true, SRQ: *number})
		require.True(t, q.Part.Held)
		require.NoError(t, verbs.DestroySRQ(srq))
		if more { // the next packet of the message is rejected
			r.packet(q, data, message.Request{Opcode: ibv.WR_SEND, Continues: true, SRQ: *number})
			require.Equal(t, ibv.QPS_ERR, q.State)
			assert.EqualValues(t, 1, q.Device.Counts[counters.SentInvalidNAKs])
		}
		_, received := r.tryPoll(cq)
		assert.False(t, received, "completion of a destroyed queue")
		require.NoError(t, verbs.DestroyQP(to))
		require.NoError(t, verbs.CloseXRCD(xrcd))
	}
}
