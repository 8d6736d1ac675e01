// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

func recvs(t testing.TB, mr *MR, n int) *RecvBatch {
	b, err := NewRecvBatch(n, 1)
	b = keep(t, b, err)
	for i := range n {
		b.Recv(uint64(i)).Add(mr.SGE(0, 64))
	}
	return b
}

// TestSRQResize: resizing changes the number of slots and the room reserved in the completion queues.
func TestSRQResize(t *testing.T) {
	pd := softPD(t)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	cq, err := pd.Device().CreateCQ(16, nil, 0)
	cq = keep(t, cq, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	srq = keep(t, srq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 2, MaxSendSGE: 1}}, QueueOptions{})
	require.NoError(t, err)
	capacity := cq.Free()
	assert.Equal(t, cq.Len()-2-4, capacity)
	_, err = srq.PostRecv(recvs(t, mr, 4))
	require.NoError(t, err)
	_, err = srq.PostRecv(recvs(t, mr, 1))
	assert.ErrorIs(t, err, syscall.ENOMEM)

	require.NoError(t, srq.Modify(&ibv.SRQAttr{MaxWR: 9}, ibv.SRQ_MAX_WR))
	assert.EqualValues(t, 9, srq.Cap().MaxWR)
	assert.Equal(t, capacity-5, cq.Free())
	assert.Equal(t, 5, srq.Queue().Free())
	_, err = srq.PostRecv(recvs(t, mr, 5))
	require.NoError(t, err)
	_, err = srq.PostRecv(recvs(t, mr, 1))
	assert.ErrorIs(t, err, syscall.ENOMEM)

	err = srq.Modify(&ibv.SRQAttr{MaxWR: 1000}, ibv.SRQ_MAX_WR)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.ErrorContains(t, err, "would need 991 more completions, but only")
	err = srq.Modify(&ibv.SRQAttr{MaxWR: 8}, ibv.SRQ_MAX_WR)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "9 receives are outstanding, more than the new size of 8")
	assert.ErrorContains(t, srq.Modify(&ibv.SRQAttr{}, ibv.SRQ_MAX_WR), "the new size is 0")
	assert.NoError(t, srq.Modify(&ibv.SRQAttr{MaxWR: 9}, ibv.SRQ_MAX_WR), "equal to the number of outstanding receives")
	assert.Equal(t, capacity-5, cq.Free())
	assert.EqualValues(t, 9, srq.Cap().MaxWR)

	require.NoError(t, srq.Modify(&ibv.SRQAttr{SRQLimit: 2}, ibv.SRQ_LIMIT))
	require.NoError(t, qp.Close())
	assert.Equal(t, cq.Len(), cq.Free())
}

// TestXRCReceivesReleaseSlots: XRC receives complete under the number of a queue pair without its own queues.
func TestXRCReceivesReleaseSlots(t *testing.T) {
	pd := softPD(t)
	d := pd.Device()
	x, err := d.OpenXRCD(&ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1,
		Oflags: syscall.O_CREAT})
	x = keep(t, x, err)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	cq, err := d.CreateCQ(16, nil, 0)
	cq = keep(t, cq, err)
	attr := &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 2, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: pd.Ptr(), XRCD: x.Ptr(), CQ: cq.Ptr(),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
	}
	srq, err := d.CreateSRQEx(attr, QueueOptions{})
	srq = keep(t, srq, err)
	assert.Equal(t, cq.Len()-2, cq.Free())
	_, err = d.CreateSRQEx(attr, QueueOptions{})
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "another shared receive queue completes there")
	unchecked, err := d.CreateSRQEx(attr, QueueOptions{Unchecked: true})
	require.NoError(t, err)
	require.NoError(t, unchecked.Close())
	assert.Equal(t, cq.Len()-2, cq.Free())

	to, err := d.CreateQPEx(&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, CompMask: ibv.QP_INIT_ATTR_XRCD, XRCD: x.Ptr()},
		QueueOptions{})
	to = keep(t, to, err)
	from, err := d.CreateQPEx(&ibv.QPInitAttrEx{
		QPType: ibv.QPT_XRC_SEND, CompMask: ibv.QP_INIT_ATTR_PD, PD: pd.Ptr(), SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
	}, QueueOptions{})
	from = keep(t, from, err)
	connectSoft(t, from, to)
	number, err := srq.Num()
	require.NoError(t, err)
	b := sendBatch(t, 2, 1, 0)
	b.Send(5).Add(mr.SGE(0, 4)).XRC(number).Signaled()
	for round := range 5 { // exceeds the depth of the queue
		_, err = srq.PostRecv(recvs(t, mr, 1))
		require.NoError(t, err, round)
		_, err = from.PostSend(b)
		require.NoError(t, err)
		for range 2 {
			wc := softCompletion(t, cq)
			require.NoError(t, CompletionErr(&wc))
		}
	}
	assert.Equal(t, 2, srq.Queue().Free())
	assert.Equal(t, 4, from.SendQueue().Free())

	// Completions of a queue pair with its own, unchecked receive queue release no slot of the shared queue.
	_, err = srq.PostRecv(recvs(t, mr, 2))
	require.NoError(t, err)
	other, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}, QueueOptions{Unchecked: true})
	connectToSelf(t, keep(t, other, err))
	_, err = other.PostRecv(recvs(t, mr, 1))
	require.NoError(t, err)
	b.Reset()
	b.Send(6).Add(mr.SGE(0, 4)).Signaled()
	b.Write(7, 0, 0).SGE(0, 4, 0).Signaled() // fails
	_, err = other.PostSend(b)
	require.NoError(t, err)
	for range 3 {
		softCompletion(t, cq)
	}
	assert.Zero(t, srq.Queue().Free())
}

func TestSRQTags(t *testing.T) {
	pd := softPD(t)
	d := pd.Device()
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	cq, err := d.CreateCQ(16, nil, 0)
	cq = keep(t, cq, err)
	srq, err := d.CreateSRQEx(&ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: pd.Ptr(), CQ: cq.Ptr(),
		TMCap:    ibv.TMCap{MaxNumTags: 2, MaxOps: 4},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	}, QueueOptions{})
	srq = keep(t, srq, err)
	assert.Equal(t, cq.Len()-4-2*2-4, cq.Free(), "room is reserved for receives, tags and operations")
	require.NoError(t, srq.Modify(&ibv.SRQAttr{MaxWR: 6}, ibv.SRQ_MAX_WR))
	assert.Equal(t, cq.Len()-6-2*2-4, cq.Free())
	b, err := NewTagBatch(3, 1)
	require.NoError(t, err)
	one := b.AddTag(1, 100, 0x11, ^uint64(0)).SGE(mr.Address(), 32, mr.LKey()).Signaled()
	other := b.AddTag(2, 101, 0x22, ^uint64(0)).SGE(mr.Address(), 32, mr.LKey())
	posted, err := srq.PostTags(b)
	require.NoError(t, err)
	assert.Equal(t, 2, posted)
	assert.NotEqual(t, one.Handle(), other.Handle())
	wc := softCompletion(t, cq)
	assert.Equal(t, ibv.WC_TM_ADD, wc.Opcode)
	assert.EqualValues(t, 1, wc.WRID)

	handle := other.Handle()
	b.Reset()
	b.DelTag(3, handle).Signaled()
	b.AddTag(4, 102, 0x33, ^uint64(0)).SGE(mr.Address(), 32, mr.LKey())
	b.AddTag(5, 103, 0x44, ^uint64(0)).SGE(mr.Address(), 32, mr.LKey())
	posted, err = srq.PostTags(b)
	var e *PostError
	require.ErrorAs(t, err, &e)
	assert.ErrorIs(t, err, syscall.ENOMEM, "the list is full")
	assert.Equal(t, 2, posted)
	assert.Equal(t, 2, e.Index)
	assert.EqualValues(t, 5, e.WRID)
	wc = softCompletion(t, cq)
	assert.Equal(t, ibv.WC_TM_DEL, wc.Opcode)

	b.Reset()
	b.Sync(6, 0).Signaled()
	_, err = srq.PostTags(b)
	require.NoError(t, err)
	wc = softCompletion(t, cq)
	assert.Equal(t, ibv.WC_TM_SYNC, wc.Opcode)
	b.DelTag(7, handle).SGE(1, 1, 1).SGE(2, 2, 2)
	_, err = srq.PostTags(b)
	assert.ErrorContains(t, err, "no room for another entry")
	require.NoError(t, b.Close())
	_, err = srq.PostTags(b)
	assert.ErrorIs(t, err, ErrClosed)
	assert.ErrorContains(t, err, ": batch: closed")
	b.AddTag(1, 2, 3, 4).SGE(1, 2, 3)

	basic, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	basic = keep(t, basic, err)
	again, err := NewTagBatch(1, 0)
	again = keep(t, again, err)
	again.Sync(1, 0)
	_, err = basic.PostTags(again)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.ErrorContains(t, err, "has type IBV_SRQT_BASIC")
}

// TestUnexpectedMessagesTakeReceives: the completion of a message without a matching tag releases the slot of its
// receive. Completions of tags, successful or not, release none.
func TestUnexpectedMessagesTakeReceives(t *testing.T) {
	pd := softPD(t)
	mr, err := pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE)
	mr = keep(t, mr, err)
	cq, err := pd.Device().CreateCQEx(&ibv.CQInitAttrEx{CQE: 32, WCFlags: ibv.WC_STANDARD_FLAGS})
	cq = keep(t, cq, err)
	srq, err := pd.Device().CreateSRQEx(&ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, SRQType: ibv.SRQT_TM, PD: pd.Ptr(), CQ: cq.Ptr(),
		TMCap:    ibv.TMCap{MaxNumTags: 2, MaxOps: 4},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ | ibv.SRQ_INIT_ATTR_TM,
	}, QueueOptions{})
	srq = keep(t, srq, err)
	sent, err := pd.Device().CreateCQ(8, nil, 0)
	sent = keep(t, sent, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: sent.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 2, MaxSendSGE: 1}}, QueueOptions{})
	connectToSelf(t, keep(t, qp, err))
	tags, err := NewTagBatch(1, 1)
	tags = keep(t, tags, err)
	batch, err := NewSendBatch(1, 1, 0)
	batch = keep(t, batch, err)
	polls, err := cq.NewPollProgram(1)
	polls = keep(t, polls, err)
	message := func(tag byte) {
		header := ibv.TMH{Opcode: ibv.TMH_EAGER, Tag: ibv.ToBE64(uint64(tag))}
		*(*ibv.TMH)(unsafe.Pointer(&mr.Bytes()[0])) = header
		batch.Reset()
		batch.Send(1).Add(mr.SGE(0, 20)).Signaled()
		_, err := qp.PostSend(batch)
		require.NoError(t, err)
		softCompletion(t, sent)
	}
	var unexpected uint32
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, next := range []func() (ibv.WCOpcode, ibv.WCStatus){
		func() (ibv.WCOpcode, ibv.WCStatus) { wc := softCompletion(t, cq); return wc.Opcode, wc.Status },
		func() (ibv.WCOpcode, ibv.WCStatus) {
			c, err := cq.WaitProgram(ctx, polls)
			require.NoError(t, err)
			return c[0].Opcode, c[0].Status
		},
	} {
		_, err = srq.PostRecv(recvs(t, mr, 4))
		require.NoError(t, err)
		for free := range 4 {
			assert.Equal(t, free, srq.Queue().Free())
			tags.Reset()
			added := tags.AddTag(1, 2, 7, ^uint64(0)).SGE(mr.Address()+32, 32, mr.LKey()).Unexpected(unexpected)
			_, err = srq.PostTags(tags)
			require.NoError(t, err)
			handle := added.Handle()
			message(7)
			_, status := next()
			assert.Equal(t, ibv.WC_SUCCESS, status)
			tags.Reset()
			tags.DelTag(3, handle)
			_, err = srq.PostTags(tags)
			require.NoError(t, err)
			_, status = next()
			assert.Equal(t, ibv.WC_TM_ERR, status)
			assert.Equal(t, free, srq.Queue().Free(), "completion of a tag")
			message(9)
			unexpected++
			opcode, _ := next()
			assert.Equal(t, ibv.WC_TM_RECV, opcode)
			assert.Equal(t, free+1, srq.Queue().Free(), "completion without a tag")
		}
	}
}

// TestRoomForMoreQueuePairs: if a completion queue has no room for a queue pair, the error states the size needed for
// this queue pair and for further ones.
func TestRoomForMoreQueuePairs(t *testing.T) {
	pd := softPD(t)
	cq, err := pd.Device().CreateCQ(128, nil, 0)
	cq = keep(t, cq, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 64, MaxSGE: 1}, QueueOptions{})
	srq = keep(t, srq, err)
	attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 64, MaxSendSGE: 1}}
	qp, err := pd.CreateQP(attr, QueueOptions{})
	require.NoError(t, err)
	more := cq.Len()
	_, err = pd.CreateQP(attr, QueueOptions{})
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.ErrorContains(t, err, fmt.Sprintf("create the queue with at least %d plus 64 for each further one like this",
		128+64))
	attr.SRQ, attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 32, 1
	_, err = pd.CreateQP(attr, QueueOptions{})
	assert.ErrorContains(t, err, fmt.Sprintf("create the queue with at least %d plus 96 for each further one like this",
		128+64+32))
	assert.Equal(t, more-128, cq.Free(), "a rejected queue pair reserves no room")
	require.NoError(t, qp.Close())
	assert.Equal(t, cq.Len(), cq.Free())
}
