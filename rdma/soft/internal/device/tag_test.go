// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// tagTestbed is a sender, and a receiver with a tag-matching queue.
type tagTestbed struct {
	*testbed
	p          *pair
	cq         *ibv.CQ // of the shared receive queue
	ex         *ibv.CQEx
	srq        *ibv.SRQ
	bufA, bufB *buffer
}

func newTagTestbed(t testing.TB, most, ops uint32) *tagTestbed {
	r := &tagTestbed{testbed: newTestbed(t, Options{Virtual: true})}
	p := &pair{aSend: r.testbed.cq(0, 16), aRecv: r.testbed.cq(0, 16), bSend: r.testbed.cq(1, 16)}
	ex, err := verbs.CreateCQEx(r.context[1], &ibv.CQInitAttrEx{CQE: 64, WCFlags: ibv.WC_EX_WITH_TM_INFO})
	require.NoError(t, err)
	r.p, r.cq, r.ex = p, verbs.CQExToCQ(ex), ex
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(r.cq)) })
	srq, err := verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(r.pd[1]), CQ: ibv.PtrTo(r.cq),
		TMCap:    ibv.TMCap{MaxNumTags: most, MaxOps: ops},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	r.srq = srq
	p.a = r.qp(0, ibv.QPT_RC, testCaps, p.aSend, p.aRecv)
	p.b, err = verbs.CreateQP(r.pd[1],
		&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(p.bSend), RecvCQ: ibv.PtrTo(p.bSend), SRQ: ibv.PtrTo(srq),
			Cap: testCaps})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(p.b)) })
	r.connect(p.a, 1, p.b.QPNum)
	r.connect(p.b, 0, p.a.QPNum)
	r.bufA, r.bufB = r.buffer(0, 4096, allAccess), r.buffer(1, 4096, allAccess)
	return r
}

// op posts one signalled operation on the tag list.
func (r *tagTestbed) op(w ibv.OpsWR) (handle uint32, err error) {
	op, bad := &offHeap[ibv.OpsWR](r.testbed, 1)[0], &offHeap[ibv.Ptr[ibv.OpsWR]](r.testbed, 1)[0]
	*op = w
	op.Flags |= ibv.OPS_SIGNALED
	if err = verbs.PostSRQOps(r.srq, op, bad); err != nil {
		assert.Equal(r.t, ibv.PtrTo(op), *bad)
	}
	return op.TM.Handle, err
}

// add adds a tag whose buffer is a part of the receiver's memory.
func (r *tagTestbed) add(id, tag uint64, offset, length int) uint32 {
	sges := offHeap[ibv.SGE](r.testbed, 1)
	sges[0] = r.bufB.sge(offset, length)
	handle, err := r.op(ibv.OpsWR{WRID: id,
		TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1, Tag: tag,
			Mask: ^uint64(0)}}})
	require.NoError(r.t, err)
	return handle
}

func (r *tagTestbed) sync(count uint32) error {
	_, err := r.op(ibv.OpsWR{WRID: 500, Opcode: ibv.WR_TAG_SYNC, Flags: ibv.OPS_TM_SYNC,
		TM: ibv.OpsTM{UnexpectedCnt: count}})
	return err
}

// message sends a header and its payload.
func (r *tagTestbed) message(op ibv.TMHOp, tag uint64, payload []byte) {
	tmh := (*ibv.TMH)(unsafe.Pointer(&r.bufA.bytes[0]))
	*tmh = ibv.TMH{Opcode: op, AppCtx: ibv.ToBE32(99), Tag: ibv.ToBE64(tag)}
	n := 16 + copy(r.bufA.bytes[16:], payload)
	require.NoError(r.t, r.post(r.p.a, r.send(1, ibv.WR_SEND, r.bufA.sge(0, n))))
	require.Equal(r.t, ibv.WC_SUCCESS, r.poll(r.p.aSend).Status)
}

// rendezvous sends a rendezvous request for data of the sender.
func (r *tagTestbed) rendezvous(tag uint64, offset, length int) {
	var rvh [1]ibv.RVH
	rvh[0] = ibv.RVH{VA: ibv.ToBE64(r.bufA.at(offset)), RKey: ibv.ToBE32(r.bufA.mr.RKey),
		Len: ibv.ToBE32(uint32(length))}
	r.message(ibv.TMH_RNDV, tag, unsafe.Slice((*byte)(unsafe.Pointer(&rvh[0])), 16))
}

func (r *tagTestbed) recvSRQ(id uint64, offset int) {
	wr, sges, bad := &offHeap[ibv.RecvWR](r.testbed, 1)[0], offHeap[ibv.SGE](r.testbed, 1),
		&offHeap[ibv.Ptr[ibv.RecvWR]](r.testbed, 1)[0]
	sges[0] = r.bufB.sge(offset, 256)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
	require.NoError(r.t, verbs.PostSRQRecv(r.srq, wr, bad))
}

// completed checks the next completion of the shared receive queue.
func (r *tagTestbed) completed(t *testing.T, id uint64, opcode ibv.WCOpcode, flags ibv.WCFlags,
	status ibv.WCStatus) ibv.WC {
	t.Helper()
	wc := r.poll(r.cq)
	assert.Equal(t, id, wc.WRID)
	assert.Equal(t, opcode, wc.Opcode)
	assert.Equal(t, flags, wc.WCFlags)
	assert.Equal(t, status, wc.Status)
	return wc
}

const matched = ibv.WC_TM_MATCH | ibv.WC_TM_DATA_VALID

func TestEagerMessages(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	r.recvSRQ(1, 2048)
	r.add(10, 0xa, 0, 64)
	r.add(11, 0xb, 64, 64)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.completed(t, 11, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("second"))
	r.message(ibv.TMH_EAGER, 0xa, []byte("first"))
	wc := r.completed(t, 11, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.EqualValues(t, 6, wc.ByteLen)
	r.completed(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.Equal(t, "first", string(r.bufB.bytes[:5]))
	assert.Equal(t, "second", string(r.bufB.bytes[64:70]))
	assert.Zero(t, r.bufB.bytes[2048], "the ordinary receive is still posted")

	r.message(ibv.TMH_NO_TAG, 0xa, []byte("untagged"))
	r.completed(t, 1, ibv.WC_TM_NO_TAG, 0, ibv.WC_SUCCESS)
	assert.Equal(t, "untagged", string(r.bufB.bytes[2048+16:2048+24]), "the complete message, with its header")
}

// TestUnexpectedMessages: a tag that was added after an unexpected message matches nothing until the program has
// acknowledged the message.
func TestUnexpectedMessages(t *testing.T) {
	r := newTagTestbed(t, 4, 8)
	for i := range 4 {
		r.recvSRQ(uint64(i), 2048+256*i)
	}
	r.add(10, 0xa, 0, 64)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("early"))
	r.completed(t, 0, ibv.WC_TM_RECV, 0, ibv.WC_SUCCESS)
	r.add(11, 0xb, 64, 64)
	r.completed(t, 11, ibv.WC_TM_ADD, ibv.WC_TM_SYNC_REQ, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("the tag matches nothing yet"))
	r.completed(t, 1, ibv.WC_TM_RECV, ibv.WC_TM_SYNC_REQ, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xa, []byte("older"))
	r.completed(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)

	require.NoError(t, r.sync(1))
	r.completed(t, 500, ibv.WC_TM_SYNC, ibv.WC_TM_SYNC_REQ, ibv.WC_SUCCESS)
	require.NoError(t, r.sync(2))
	r.completed(t, 500, ibv.WC_TM_SYNC, 0, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("now"))
	r.completed(t, 11, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.Equal(t, "now", string(r.bufB.bytes[64:67]))
}

func TestRendezvous(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	copy(r.bufA.bytes[1024:], "the data of a rendezvous")
	r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
	r.add(10, 0xa, 0, 64)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xa, 1024, 24)
	r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
	r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
	assert.Equal(t, "the data of a rendezvous", string(r.bufB.bytes[:24]))
	wc := r.poll(r.p.aRecv)
	assert.EqualValues(t, 77, wc.WRID)
	assert.EqualValues(t, 32, wc.ByteLen)
	fin := (*ibv.TMH)(unsafe.Pointer(&r.bufA.bytes[3000]))
	assert.Equal(t, ibv.TMH{Opcode: ibv.TMH_FIN, AppCtx: ibv.ToBE32(99), Tag: ibv.ToBE64(0xa)}, *fin)

	// If the data does not fit, the program handles the message, whose buffer contains both headers.
	r.add(11, 0xb, 256, 32)
	r.completed(t, 11, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xb, 1024, 33)
	r.completed(t, 11, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_TM_RNDV_INCOMPLETE)
	assert.Equal(t, r.bufA.bytes[:32], r.bufB.bytes[256:288])
	_, more := r.tryPoll(r.p.aRecv)
	assert.False(t, more, "no FIN")

	// The FIN waits for a receive.
	r.add(12, 0xc, 512, 64)
	r.completed(t, 12, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xc, 1024, 24)
	r.completed(t, 12, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
	r.completed(t, 12, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
	r.recv(r.p.a, 78, r.bufA.sge(3000, 64))
	assert.EqualValues(t, 78, r.poll(r.p.aRecv).WRID)
}

// TestRendezvousWithoutReads: a rendezvous fails unless both sides allow outstanding reads.
func TestRendezvousWithoutReads(t *testing.T) {
	for name, c := range map[string]struct {
		of    func(r *tagTestbed) *ibv.QP
		lacks ibv.QPAttrMask
		want  ibv.WCStatus
	}{
		"receiver": {func(r *tagTestbed) *ibv.QP { return r.p.b }, ibv.QP_MAX_QP_RD_ATOMIC, ibv.WC_LOC_QP_OP_ERR},
		"sender":   {func(r *tagTestbed) *ibv.QP { return r.p.a }, ibv.QP_MAX_DEST_RD_ATOMIC, ibv.WC_REM_INV_REQ_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTagTestbed(t, 4, 4)
			qp := c.of(r)
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{}, c.lacks))
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
			r.add(10, 0xa, 0, 64)
			r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
			copy(r.bufA.bytes[1024:], "unread")
			r.rendezvous(0xa, 1024, 6)
			r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
			r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, c.want)
			assert.Zero(t, r.bufB.bytes[0])
		})
	}
}

// TestEmptyRendezvous: a rendezvous of 0 bytes does not read, and the receiver's next message arrives.
func TestEmptyRendezvous(t *testing.T) {
	for _, wire := range []string{"", "packets"} {
		t.Setenv(wireVariable, wire)
		r := newTagTestbed(t, 4, 4)
		r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
		r.add(10, 0xa, 0, 64)
		r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
		r.rendezvous(0xa, 1024, 0)
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
		assert.EqualValues(t, 32, r.poll(r.p.aRecv).ByteLen, "the FIN, over %q", wire)
	}
}

// TestRendezvousHeaderLimit: a rendezvous request longer than the device's limit matches no tag; one of exactly that
// length does.
func TestRendezvousHeaderLimit(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	r.recvSRQ(7, 2048)
	r.add(10, 0xa, 0, 64)
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	rest := 64 - int(resource.TagHeader)
	r.message(ibv.TMH_RNDV, 0xa, make([]byte, rest+1))
	assert.EqualValues(t, 64+1, r.completed(t, 7, ibv.WC_TM_NO_TAG, 0, ibv.WC_SUCCESS).ByteLen)
	r.recv(r.p.a, 77, r.bufA.sge(3000, 64))
	r.message(ibv.TMH_RNDV, 0xa, make([]byte, rest)) // without data
	r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
	r.completed(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
	assert.EqualValues(t, 77, r.poll(r.p.aRecv).WRID)
}

func TestTagList(t *testing.T) {
	r := newTagTestbed(t, 2, 3)
	first := r.add(10, 0xa, 0, 64)
	r.add(11, 0xb, 0, 64)
	_, err := r.op(ibv.OpsWR{})
	assert.ErrorIs(t, err, syscall.ENOMEM, "the list is full")
	_, err = r.op(ibv.OpsWR{Opcode: 9})
	assert.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, r.sync(0))
	assert.ErrorIs(t, r.sync(0), syscall.ENOMEM, "three operations are outstanding")
	r.completed(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	_, err = r.op(ibv.OpsWR{WRID: 20, Opcode: ibv.WR_TAG_DEL, TM: ibv.OpsTM{Handle: first}})
	require.NoError(t, err)
	r.completed(t, 11, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.completed(t, 500, ibv.WC_TM_SYNC, 0, ibv.WC_SUCCESS)
	r.completed(t, 20, ibv.WC_TM_DEL, 0, ibv.WC_SUCCESS)
	_, err = r.op(ibv.OpsWR{WRID: 21, Opcode: ibv.WR_TAG_DEL, TM: ibv.OpsTM{Handle: first}})
	require.NoError(t, err)
	r.completed(t, 21, ibv.WC_TM_DEL, 0, ibv.WC_TM_ERR)
}

// TestTaggedInvalidation: a send with invalidate invalidates the key whether or not a tag matches.
func TestTaggedInvalidation(t *testing.T) {
	for _, op := range []ibv.TMHOp{ibv.TMH_NO_TAG, ibv.TMH_EAGER} {
		r := newTagTestbed(t, 4, 8)
		mr := r.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND)
		mw, err := verbs.AllocMW(r.pd[1], ibv.MW_TYPE_2)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeallocMW(mw)) })
		bind := r.testbed.send(1, ibv.WR_BIND_MW)
		bind.BindMW().MW, bind.BindMW().RKey = ibv.PtrTo(mw), mw.RKey+1
		bind.BindMW().BindInfo = ibv.MWBindInfo{MR: ibv.PtrTo(mr.mr), Addr: mr.at(0), Length: 64,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}
		require.NoError(t, r.post(r.p.b, bind))
		require.Equal(t, ibv.WC_SUCCESS, r.poll(r.p.bSend).Status)
		r.recvSRQ(7, 0)
		r.add(8, 5, 1024, 64)
		r.completed(t, 8, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
		*(*ibv.TMH)(unsafe.Pointer(&r.bufA.bytes[0])) = ibv.TMH{Opcode: op, Tag: ibv.ToBE64(5)}
		// the second time the key is already invalid
		for _, want := range []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_REM_INV_REQ_ERR} {
			send := r.testbed.send(1, ibv.WR_SEND_WITH_INV, r.bufA.sge(0, 16))
			*send.InvalidateRKey() = mw.RKey + 1
			require.NoError(t, r.post(r.p.a, send))
			assert.Equal(t, want, r.poll(r.p.aSend).Status)
		}
		if op == ibv.TMH_NO_TAG {
			r.completed(t, 7, ibv.WC_TM_NO_TAG, ibv.WC_WITH_INV, ibv.WC_SUCCESS)
		} else {
			r.completed(t, 8, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
		}
	}
}

// TestCircularTagOperations: a circular list exceeds the limit of outstanding operations.
func TestCircularTagOperations(t *testing.T) {
	r := newTagTestbed(t, 2, 3)
	op, bad := &offHeap[ibv.OpsWR](r.testbed, 1)[0], &offHeap[ibv.Ptr[ibv.OpsWR]](r.testbed, 1)[0]
	*op = ibv.OpsWR{Opcode: ibv.WR_TAG_SYNC, Next: ibv.PtrTo(op)}
	assert.ErrorIs(t, verbs.PostSRQOps(r.srq, op, bad), syscall.ENOMEM)
	assert.Equal(t, ibv.PtrTo(op), *bad)
}

// TestTagLimit: messages that match no tag count towards the limit, too.
func TestTagLimit(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	for id := range uint64(2) {
		r.recvSRQ(id, 0)
	}
	require.NoError(t, verbs.ModifySRQ(r.srq, &ibv.SRQAttr{SRQLimit: 2}, ibv.SRQ_LIMIT))
	r.message(ibv.TMH_EAGER, 0xb, nil)
	attr := new(ibv.SRQAttr)
	require.NoError(t, verbs.QuerySRQ(r.srq, attr))
	assert.Zero(t, attr.SRQLimit, "the program acknowledged the message")
}

// TestNoOutstandingReads: a queue pair with max_rd_atomic 0 cannot read.
func TestNoOutstandingReads(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{}, ibv.QP_MAX_QP_RD_ATOMIC))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
	require.NoError(t, s.post(s.p.a, s.toBufB(s.send(1, ibv.WR_RDMA_READ, s.bufA.sge(0, 8)), 0)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_LOC_QP_OP_ERR}, s.statuses(s.p.aSend))
}

// TestTagOperationsDuringDestroy: a destroyed queue does not execute pending operations, because its completion queue
// may be destroyed, too.
func TestTagOperationsDuringDestroy(t *testing.T) {
	r := newTagTestbed(t, 4, 4)
	srq, err := verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(r.pd[1]), CQ: ibv.PtrTo(r.cq),
		TMCap:    ibv.TMCap{MaxNumTags: 4, MaxOps: 4},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	})
	require.NoError(t, err)
	op, bad := offHeap[ibv.OpsWR](r.testbed, 1), offHeap[ibv.Ptr[ibv.OpsWR]](r.testbed, 1)
	op[0] = ibv.OpsWR{Opcode: ibv.WR_TAG_SYNC, Flags: ibv.OPS_SIGNALED}
	posted, address := make(chan error, 1), uint64(mem.AddressOf(srq))
	r.fabric.Mu.Lock()
	go func() { posted <- verbs.PostSRQOps(srq, &op[0], &bad[0]) }()
	time.Sleep(20 * time.Millisecond) // the operation is pending
	of := impl.Find[impl.SRQ](address)
	impl.Enter(srq, nil) // like ibv_destroy_srq
	r.fabric.Mu.Unlock()
	assert.ErrorIs(t, <-posted, syscall.EINVAL)
	_, completed := r.tryPoll(r.cq)
	assert.False(t, completed)
	impl.Enter(srq, of)
	require.NoError(t, verbs.DestroySRQ(srq))
}
