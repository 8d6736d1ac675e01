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
)

// tagRig is a sender and a receiver that matches tags.
type tagRig struct {
	*rig
	p           *pair
	cq          *ibv.CQ // of the shared receive queue
	ex          *ibv.CQEx
	srq         *ibv.SRQ
	here, there *buffer
}

func newTagRig(t testing.TB, most, ops uint32) *tagRig {
	r := &tagRig{rig: newRig(t, Options{Virtual: true})}
	p := &pair{aSend: r.rig.cq(0, 16), aRecv: r.rig.cq(0, 16), bSend: r.rig.cq(1, 16)}
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
	r.here, r.there = r.buffer(0, 4096, everything), r.buffer(1, 4096, everything)
	return r
}

// op posts one signalled operation on the tag list.
func (r *tagRig) op(w ibv.OpsWR) (handle uint32, err error) {
	op, bad := &outside[ibv.OpsWR](r.rig, 1)[0], &outside[ibv.Ptr[ibv.OpsWR]](r.rig, 1)[0]
	*op = w
	op.Flags |= ibv.OPS_SIGNALED
	if err = verbs.PostSRQOps(r.srq, op, bad); err != nil {
		assert.Equal(r.t, ibv.PtrTo(op), *bad)
	}
	return op.TM.Handle, err
}

// add adds a tag whose buffer is part of the receiver's.
func (r *tagRig) add(id, tag uint64, offset, length int) uint32 {
	sges := outside[ibv.SGE](r.rig, 1)
	sges[0] = r.there.sge(offset, length)
	handle, err := r.op(ibv.OpsWR{WRID: id,
		TM: ibv.OpsTM{Add: ibv.OpsTMAdd{RecvWRID: id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1, Tag: tag,
			Mask: ^uint64(0)}}})
	require.NoError(r.t, err)
	return handle
}

func (r *tagRig) sync(count uint32) error {
	_, err := r.op(ibv.OpsWR{WRID: 500, Opcode: ibv.WR_TAG_SYNC, Flags: ibv.OPS_TM_SYNC,
		TM: ibv.OpsTM{UnexpectedCnt: count}})
	return err
}

// message sends a header and its payload.
func (r *tagRig) message(op ibv.TMHOp, tag uint64, payload []byte) {
	tmh := (*ibv.TMH)(unsafe.Pointer(&r.here.bytes[0]))
	*tmh = ibv.TMH{Opcode: op, AppCtx: ibv.ToBE32(99), Tag: ibv.ToBE64(tag)}
	n := 16 + copy(r.here.bytes[16:], payload)
	require.NoError(r.t, r.post(r.p.a, r.send(1, ibv.WR_SEND, r.here.sge(0, n))))
	require.Equal(r.t, ibv.WC_SUCCESS, r.poll(r.p.aSend).Status)
}

// rendezvous sends an announcement of data of the sender's.
func (r *tagRig) rendezvous(tag uint64, offset, length int) {
	var rvh [1]ibv.RVH
	rvh[0] = ibv.RVH{VA: ibv.ToBE64(r.here.at(offset)), RKey: ibv.ToBE32(r.here.mr.RKey),
		Len: ibv.ToBE32(uint32(length))}
	r.message(ibv.TMH_RNDV, tag, unsafe.Slice((*byte)(unsafe.Pointer(&rvh[0])), 16))
}

func (r *tagRig) recvSRQ(id uint64, offset int) {
	wr, sges, bad := &outside[ibv.RecvWR](r.rig, 1)[0], outside[ibv.SGE](r.rig, 1),
		&outside[ibv.Ptr[ibv.RecvWR]](r.rig, 1)[0]
	sges[0] = r.there.sge(offset, 256)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&sges[0]), NumSGE: 1}
	require.NoError(r.t, verbs.PostSRQRecv(r.srq, wr, bad))
}

// came checks a completion of the shared receive queue.
func (r *tagRig) came(t *testing.T, id uint64, opcode ibv.WCOpcode, flags ibv.WCFlags, status ibv.WCStatus) ibv.WC {
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
	r := newTagRig(t, 4, 4)
	r.recvSRQ(1, 2048)
	r.add(10, 0xa, 0, 64)
	r.add(11, 0xb, 64, 64)
	r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.came(t, 11, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("second"))
	r.message(ibv.TMH_EAGER, 0xa, []byte("first"))
	wc := r.came(t, 11, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.EqualValues(t, 6, wc.ByteLen)
	r.came(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.Equal(t, "first", string(r.there.bytes[:5]))
	assert.Equal(t, "second", string(r.there.bytes[64:70]))
	assert.Zero(t, r.there.bytes[2048], "the plain receive is still there")

	r.message(ibv.TMH_NO_TAG, 0xa, []byte("untagged"))
	r.came(t, 1, ibv.WC_TM_NO_TAG, 0, ibv.WC_SUCCESS)
	assert.Equal(t, "untagged", string(r.there.bytes[2048+16:2048+24]), "the whole message, with its header")
}

// TestUnexpectedMessages: a tag that was added behind an unexpected message matches nothing until the program has seen
// that.
func TestUnexpectedMessages(t *testing.T) {
	r := newTagRig(t, 4, 8)
	for i := range 4 {
		r.recvSRQ(uint64(i), 2048+256*i)
	}
	r.add(10, 0xa, 0, 64)
	r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("early"))
	r.came(t, 0, ibv.WC_TM_RECV, 0, ibv.WC_SUCCESS)
	r.add(11, 0xb, 64, 64)
	r.came(t, 11, ibv.WC_TM_ADD, ibv.WC_TM_SYNC_REQ, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("held back"))
	r.came(t, 1, ibv.WC_TM_RECV, ibv.WC_TM_SYNC_REQ, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xa, []byte("older"))
	r.came(t, 10, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)

	require.NoError(t, r.sync(1))
	r.came(t, 500, ibv.WC_TM_SYNC, ibv.WC_TM_SYNC_REQ, ibv.WC_SUCCESS)
	require.NoError(t, r.sync(2))
	r.came(t, 500, ibv.WC_TM_SYNC, 0, ibv.WC_SUCCESS)
	r.message(ibv.TMH_EAGER, 0xb, []byte("now"))
	r.came(t, 11, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
	assert.Equal(t, "now", string(r.there.bytes[64:67]))
}

func TestRendezvous(t *testing.T) {
	r := newTagRig(t, 4, 4)
	copy(r.here.bytes[1024:], "the data of a rendezvous")
	r.recv(r.p.a, 77, r.here.sge(3000, 64))
	r.add(10, 0xa, 0, 64)
	r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xa, 1024, 24)
	r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
	r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
	assert.Equal(t, "the data of a rendezvous", string(r.there.bytes[:24]))
	wc := r.poll(r.p.aRecv)
	assert.EqualValues(t, 77, wc.WRID)
	assert.EqualValues(t, 32, wc.ByteLen)
	fin := (*ibv.TMH)(unsafe.Pointer(&r.here.bytes[3000]))
	assert.Equal(t, ibv.TMH{Opcode: ibv.TMH_FIN, AppCtx: ibv.ToBE32(99), Tag: ibv.ToBE64(0xa)}, *fin)

	// If the data does not fit, the program handles it: both headers are in the buffer.
	r.add(11, 0xb, 256, 32)
	r.came(t, 11, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xb, 1024, 33)
	r.came(t, 11, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_TM_RNDV_INCOMPLETE)
	assert.Equal(t, r.here.bytes[:32], r.there.bytes[256:288])
	_, more := r.polled(r.p.aRecv)
	assert.False(t, more, "no FIN")

	// The FIN waits for a receive.
	r.add(12, 0xc, 512, 64)
	r.came(t, 12, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.rendezvous(0xc, 1024, 24)
	r.came(t, 12, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
	r.came(t, 12, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
	r.recv(r.p.a, 78, r.here.sge(3000, 64))
	assert.EqualValues(t, 78, r.poll(r.p.aRecv).WRID)
}

// TestRendezvousWithoutReads: the data of a rendezvous is read, for which both sides have to have reads at once.
func TestRendezvousWithoutReads(t *testing.T) {
	for name, c := range map[string]struct {
		of    func(r *tagRig) *ibv.QP
		lacks ibv.QPAttrMask
		want  ibv.WCStatus
	}{
		"receiver": {func(r *tagRig) *ibv.QP { return r.p.b }, ibv.QP_MAX_QP_RD_ATOMIC, ibv.WC_LOC_QP_OP_ERR},
		"sender":   {func(r *tagRig) *ibv.QP { return r.p.a }, ibv.QP_MAX_DEST_RD_ATOMIC, ibv.WC_REM_INV_REQ_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTagRig(t, 4, 4)
			qp := c.of(r)
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{}, c.lacks))
			require.NoError(t, verbs.ModifyQP(qp, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
			r.add(10, 0xa, 0, 64)
			r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
			copy(r.here.bytes[1024:], "unread")
			r.rendezvous(0xa, 1024, 6)
			r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
			r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, c.want)
			assert.Zero(t, r.there.bytes[0])
		})
	}
}

// TestEmptyRendezvous: a rendezvous of no bytes reads nothing, and the receiver's next message arrives.
func TestEmptyRendezvous(t *testing.T) {
	for _, wire := range []string{"", "packets"} {
		t.Setenv(wireVariable, wire)
		r := newTagRig(t, 4, 4)
		r.recv(r.p.a, 77, r.here.sge(3000, 64))
		r.add(10, 0xa, 0, 64)
		r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
		r.rendezvous(0xa, 1024, 0)
		r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
		r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
		assert.EqualValues(t, 32, r.poll(r.p.aRecv).ByteLen, "the FIN, over %q", wire)
	}
}

// TestLongAnnouncements: a rendezvous announcement longer than the device's limit takes no tag; one of exactly that
// length does.
func TestLongAnnouncements(t *testing.T) {
	r := newTagRig(t, 4, 4)
	r.recvSRQ(7, 2048)
	r.add(10, 0xa, 0, 64)
	r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	rest := rndvBytes - int(tmhSize)
	r.message(ibv.TMH_RNDV, 0xa, make([]byte, rest+1))
	assert.EqualValues(t, rndvBytes+1, r.came(t, 7, ibv.WC_TM_NO_TAG, 0, ibv.WC_SUCCESS).ByteLen)
	r.recv(r.p.a, 77, r.here.sge(3000, 64))
	r.message(ibv.TMH_RNDV, 0xa, make([]byte, rest)) // of no data
	r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_MATCH, ibv.WC_SUCCESS)
	r.came(t, 10, ibv.WC_TM_RECV, ibv.WC_TM_DATA_VALID, ibv.WC_SUCCESS)
	assert.EqualValues(t, 77, r.poll(r.p.aRecv).WRID)
}

func TestTagList(t *testing.T) {
	r := newTagRig(t, 2, 3)
	first := r.add(10, 0xa, 0, 64)
	r.add(11, 0xb, 0, 64)
	_, err := r.op(ibv.OpsWR{})
	assert.ErrorIs(t, err, syscall.ENOMEM, "the list is full")
	_, err = r.op(ibv.OpsWR{Opcode: 9})
	assert.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, r.sync(0))
	assert.ErrorIs(t, r.sync(0), syscall.ENOMEM, "three operations are outstanding")
	r.came(t, 10, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	_, err = r.op(ibv.OpsWR{WRID: 20, Opcode: ibv.WR_TAG_DEL, TM: ibv.OpsTM{Handle: first}})
	require.NoError(t, err)
	r.came(t, 11, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
	r.came(t, 500, ibv.WC_TM_SYNC, 0, ibv.WC_SUCCESS)
	r.came(t, 20, ibv.WC_TM_DEL, 0, ibv.WC_SUCCESS)
	_, err = r.op(ibv.OpsWR{WRID: 21, Opcode: ibv.WR_TAG_DEL, TM: ibv.OpsTM{Handle: first}})
	require.NoError(t, err)
	r.came(t, 21, ibv.WC_TM_DEL, 0, ibv.WC_TM_ERR)
}

// TestTaggedInvalidation: a message that invalidates does so whether a tag matches or not.
func TestTaggedInvalidation(t *testing.T) {
	for _, op := range []ibv.TMHOp{ibv.TMH_NO_TAG, ibv.TMH_EAGER} {
		r := newTagRig(t, 4, 8)
		mr := r.buffer(1, 4096, everything|ibv.ACCESS_MW_BIND)
		mw, err := verbs.AllocMW(r.pd[1], ibv.MW_TYPE_2)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeallocMW(mw)) })
		bind := r.rig.send(1, ibv.WR_BIND_MW)
		bind.BindMW().MW, bind.BindMW().RKey = ibv.PtrTo(mw), mw.RKey+1
		bind.BindMW().BindInfo = ibv.MWBindInfo{MR: ibv.PtrTo(mr.mr), Addr: mr.at(0), Length: 64,
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE}
		require.NoError(t, r.post(r.p.b, bind))
		require.Equal(t, ibv.WC_SUCCESS, r.poll(r.p.bSend).Status)
		r.recvSRQ(7, 0)
		r.add(8, 5, 1024, 64)
		r.came(t, 8, ibv.WC_TM_ADD, 0, ibv.WC_SUCCESS)
		*(*ibv.TMH)(unsafe.Pointer(&r.here.bytes[0])) = ibv.TMH{Opcode: op, Tag: ibv.ToBE64(5)}
		// the second time there is nothing to invalidate
		for _, want := range []ibv.WCStatus{ibv.WC_SUCCESS, ibv.WC_REM_INV_REQ_ERR} {
			send := r.rig.send(1, ibv.WR_SEND_WITH_INV, r.here.sge(0, 16))
			*send.InvalidateRKey() = mw.RKey + 1
			require.NoError(t, r.post(r.p.a, send))
			assert.Equal(t, want, r.poll(r.p.aSend).Status)
		}
		if op == ibv.TMH_NO_TAG {
			r.came(t, 7, ibv.WC_TM_NO_TAG, ibv.WC_WITH_INV, ibv.WC_SUCCESS)
		} else {
			r.came(t, 8, ibv.WC_TM_RECV, matched, ibv.WC_SUCCESS)
		}
	}
}

// TestTagOperationsWithoutEnd: a circular list exceeds the limit of outstanding operations.
func TestTagOperationsWithoutEnd(t *testing.T) {
	r := newTagRig(t, 2, 3)
	op, bad := &outside[ibv.OpsWR](r.rig, 1)[0], &outside[ibv.Ptr[ibv.OpsWR]](r.rig, 1)[0]
	*op = ibv.OpsWR{Opcode: ibv.WR_TAG_SYNC, Next: ibv.PtrTo(op)}
	assert.ErrorIs(t, verbs.PostSRQOps(r.srq, op, bad), syscall.ENOMEM)
	assert.Equal(t, ibv.PtrTo(op), *bad)
}

// TestLimitOfTags: messages that match no tag count for the limit, too.
func TestLimitOfTags(t *testing.T) {
	r := newTagRig(t, 4, 4)
	for id := range uint64(2) {
		r.recvSRQ(id, 0)
	}
	require.NoError(t, verbs.ModifySRQ(r.srq, &ibv.SRQAttr{SRQLimit: 2}, ibv.SRQ_LIMIT))
	r.message(ibv.TMH_EAGER, 0xb, nil)
	attr := new(ibv.SRQAttr)
	require.NoError(t, verbs.QuerySRQ(r.srq, attr))
	assert.Zero(t, attr.SRQLimit, "it was told")
}

// TestNoReadsAtOnce: a queue pair that may have no outstanding read cannot read.
func TestNoReadsAtOnce(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{}, ibv.QP_MAX_QP_RD_ATOMIC))
	require.NoError(t, verbs.ModifyQP(s.p.a, &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
	require.NoError(t, s.post(s.p.a, s.remote(s.send(1, ibv.WR_RDMA_READ, s.here.sge(0, 8)), 0)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_LOC_QP_OP_ERR}, s.statuses(s.p.aSend))
}

// TestTagOperationsOnAQueueThatGoes: a queue that is destroyed before an operation's turn comes takes it no more: its
// completion queue may be gone, too.
func TestTagOperationsOnAQueueThatGoes(t *testing.T) {
	r := newTagRig(t, 4, 4)
	srq, err := verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: ibv.PtrTo(r.pd[1]), CQ: ibv.PtrTo(r.cq),
		TMCap:    ibv.TMCap{MaxNumTags: 4, MaxOps: 4},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	})
	require.NoError(t, err)
	op, bad := outside[ibv.OpsWR](r.rig, 1), outside[ibv.Ptr[ibv.OpsWR]](r.rig, 1)
	op[0] = ibv.OpsWR{Opcode: ibv.WR_TAG_SYNC, Flags: ibv.OPS_SIGNALED}
	posted, address := make(chan error, 1), uint64(mem.AddressOf(srq))
	r.fabric.mu.Lock()
	go func() { posted <- verbs.PostSRQOps(srq, &op[0], &bad[0]) }()
	time.Sleep(20 * time.Millisecond) // it waits for its turn
	all.mu.Lock()
	of := all.objects[address]
	delete(all.objects, address) // as destroying it does
	all.mu.Unlock()
	r.fabric.mu.Unlock()
	assert.ErrorIs(t, <-posted, syscall.EINVAL)
	_, came := r.polled(r.cq)
	assert.False(t, came)
	all.mu.Lock()
	all.objects[address] = of
	all.mu.Unlock()
	require.NoError(t, verbs.DestroySRQ(srq))
}
