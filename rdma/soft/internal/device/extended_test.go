// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
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

// extended replaces the sender by a queue pair with builders.
func (s *stage) extended(ops ibv.QPCreateSendOpsFlags) *ibv.QPEx {
	qp, err := verbs.CreateQPEx(s.context[0], &ibv.QPInitAttrEx{
		QPType: s.p.a.QPType, SendCQ: ibv.PtrTo(s.p.aSend), RecvCQ: ibv.PtrTo(s.p.aRecv), Cap: testCaps,
		PD:       ibv.PtrTo(s.pd[0]),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: ops,
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, verbs.DestroyQP(qp)) })
	require.NoError(s.t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
	s.connect(qp, 1, s.p.b.QPNum)
	s.connect(s.p.b, 0, qp.QPNum)
	x, err := verbs.QPToQPEx(qp)
	require.NoError(s.t, err)
	return x
}

func TestBuilders(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	x := s.extended(ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_ATOMIC_WRITE |
		ibv.QP_EX_WITH_FLUSH)
	assert.Zero(t, x.WRRDMARead, "it was not asked for")
	remote, rkey := s.there.at(0), s.there.mr.RKey
	copy(s.here.bytes, "written and sent")
	s.recv(s.p.b, 7, s.there.sge(1000, 64))

	require.NoError(t, verbs.WRStart(x))
	x.WRID, x.WRFlags = 1, 0
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRSetSGEList(x, 2, &[]ibv.SGE{s.here.sge(0, 8), s.here.sge(12, 4)}[0]))
	x.WRID = 2
	require.NoError(t, verbs.WRSendImm(x, ibv.ToBE32(5)))
	require.NoError(t, verbs.WRSetInlineData(x, pointerTo(&s.here.bytes[0]), 7))
	x.WRID, x.WRFlags = 3, ibv.SEND_SIGNALED
	value := make([]byte, 8)
	binary.NativeEndian.PutUint64(value, 0x0102030405060708)
	require.NoError(t, verbs.WRAtomicWrite(x, rkey, remote+64, pointerTo(&value[0])))
	x.WRID = 4
	require.NoError(t, verbs.WRFlush(x, rkey, remote, 100, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
	assert.Zero(t, s.there.bytes[0], "nothing is posted before it is complete")
	require.NoError(t, verbs.WRComplete(x))

	assert.Equal(t, ibv.WC{WRID: 3, Opcode: ibv.WC_ATOMIC_WRITE, QPNum: x.QPBase.QPNum}, s.poll(s.p.aSend))
	assert.Equal(t, ibv.WC{WRID: 4, Opcode: ibv.WC_FLUSH, QPNum: x.QPBase.QPNum}, s.poll(s.p.aSend))
	assert.Equal(t, "written sent", string(s.there.bytes[:12]))
	assert.EqualValues(t, uint64(0x0102030405060708), binary.NativeEndian.Uint64(s.there.bytes[64:]))
	wc := s.poll(s.p.bRecv)
	assert.EqualValues(t, 5, wc.ImmData().Host())
	assert.Equal(t, "written", string(s.there.bytes[1000:1007]))

	// An error of any request is told when all are complete, and none is posted.
	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRSetInlineData(x, pointerTo(&s.here.bytes[0]), 65))
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRSetSGE(x, s.here.mr.LKey, s.here.at(0), 8))
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL)
	require.NoError(t, verbs.WRStart(x))
	for range 20 {
		require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	}
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.ENOMEM)
	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRAbort(x))
	assert.Empty(t, s.statuses(s.p.aSend))

	without, err := verbs.QPToQPEx(s.p.b)
	require.NoError(t, err)
	assert.Nil(t, without, "it was made without builders")
}

func TestExtendedCompletions(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	cq, err := verbs.CreateCQEx(s.context[1], &ibv.CQInitAttrEx{
		CQE: 8, WCFlags: ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_IMM | ibv.WC_EX_WITH_SRC_QP |
			ibv.WC_EX_WITH_COMPLETION_TIMESTAMP,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq))) })
	assert.Zero(t, cq.ReadSL, "it was not asked for")
	to := s.qp(1, ibv.QPT_RC, testCaps, s.p.bSend, verbs.CQExToCQ(cq))
	from := s.qp(0, ibv.QPT_RC, testCaps, s.p.aSend, s.p.aRecv)
	s.connect(from, 1, to.QPNum)
	s.connect(to, 0, from.QPNum)
	attr := new(ibv.PollCQAttr)
	assert.ErrorIs(t, verbs.StartPoll(cq, attr), syscall.ENOENT)
	for id := range uint64(3) {
		s.recv(to, id, s.there.sge(0, 64))
		wr := s.send(id, ibv.WR_SEND_WITH_IMM, s.here.sge(0, int(id)))
		*wr.ImmData() = ibv.ToBE32(uint32(id))
		require.NoError(t, s.post(from, wr))
		s.fabric.Advance(time.Microsecond)
	}
	var last uint64
	require.NoError(t, verbs.StartPoll(cq, attr))
	for id := range uint64(3) {
		if id > 0 {
			require.NoError(t, verbs.NextPoll(cq))
		}
		assert.Equal(t, id, cq.WRID)
		assert.Equal(t, ibv.WC_SUCCESS, cq.Status)
		length, err := verbs.WCReadByteLen(cq)
		require.NoError(t, err)
		assert.EqualValues(t, id, length)
		imm, err := verbs.WCReadImmData(cq)
		require.NoError(t, err)
		assert.Equal(t, ibv.ToBE32(uint32(id)), imm)
		src, err := verbs.WCReadSrcQP(cq)
		require.NoError(t, err)
		assert.Equal(t, from.QPNum, src)
		stamp, err := verbs.WCReadCompletionTS(cq)
		require.NoError(t, err)
		if id > 0 {
			assert.Equal(t, last+1000, stamp, "cycles are nanoseconds")
		}
		last = stamp
	}
	assert.ErrorIs(t, verbs.NextPoll(cq), syscall.ENOENT)
	require.NoError(t, verbs.EndPoll(cq))
	assert.ErrorIs(t, verbs.StartPoll(cq, attr), syscall.ENOENT)
	_, err = verbs.CreateCQEx(s.context[1], &ibv.CQInitAttrEx{CQE: 8, WCFlags: ibv.WC_EX_WITH_CVLAN})
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
}

// TestEvents: a channel gets an event for the next completion after arming, or only for solicited ones.
func TestEvents(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	ch, err := verbs.CreateCompChannel(s.context[1])
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(s.context[1], 16, 0xabcd, ch, 0)
	require.NoError(t, err)
	from := s.qp(0, ibv.QPT_RC, testCaps, s.p.aSend, s.p.aRecv)
	to, err := verbs.CreateQP(s.pd[1],
		&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(s.p.bSend), RecvCQ: ibv.PtrTo(cq), Cap: testCaps})
	require.NoError(t, err)
	s.connect(from, 1, to.QPNum)
	s.connect(to, 0, from.QPNum)
	send := func(flags ibv.SendFlags) {
		s.recv(to, 1)
		wr := s.send(1, ibv.WR_SEND)
		wr.SendFlags |= flags
		require.NoError(t, s.post(from, wr))
		s.poll(s.p.aSend)
	}
	came := func() bool {
		c := find[channel](mem.AddressOf(ch))
		c.fabric().mu.Lock()
		defer c.fabric().mu.Unlock()
		return len(c.events.queue) > 0
	}
	take := func() {
		of, context := s.cqEvent(ch)
		assert.Equal(t, ibv.PtrTo(cq), of)
		assert.EqualValues(t, 0xabcd, context)
	}
	send(0)
	assert.False(t, came(), "nobody asked")
	require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
	assert.False(t, came(), "what was there before makes no event")
	send(0)
	assert.True(t, came())
	take()
	send(0)
	assert.False(t, came(), "one event for one request")
	require.NoError(t, verbs.ReqNotifyCQ(cq, 1))
	send(0)
	assert.False(t, came())
	send(ibv.SEND_SOLICITED)
	take()

	require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
	require.NoError(t, verbs.ReqNotifyCQ(cq, 1)) // does not cancel the earlier request
	send(0)
	assert.True(t, came(), "who asked for any completion hears of any")
	take()

	require.NoError(t, verbs.ReqNotifyCQ(cq, 1))
	go func() {
		time.Sleep(10 * time.Millisecond)
		s.fabric.mu.Lock() // an error is told of without being solicited
		find[qp](mem.AddressOf(to)).setState(ibv.QPS_ERR)
		s.fabric.Unlock()
	}()
	s.recv(to, 2)
	take()
	require.NoError(t, verbs.DestroyQP(to))
	destroyed := make(chan error)
	go func() { destroyed <- verbs.DestroyCQ(cq) }()
	select {
	case <-destroyed:
		t.Error("the queue went while events were not acknowledged")
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, verbs.AckCQEvents(cq, 4))
	require.NoError(t, <-destroyed)
	require.NoError(t, verbs.DestroyCompChannel(ch))
}

// TestCloseWakes: a wait for an event of a device that is closed ends.
func TestCloseWakes(t *testing.T) {
	f, err := New(Options{})
	require.NoError(t, err)
	context, errno := openDevice(ibv.PtrTo(f.devices[0].record))
	require.Zero(t, errno)
	woken := make(chan error)
	go func() { woken <- verbs.GetAsyncEvent(context.Deref(), new(ibv.AsyncEvent)) }()
	time.Sleep(20 * time.Millisecond)
	require.Error(t, f.Close(), "a device is open")
	require.NoError(t, verbs.CloseDevice(context.Deref()))
	select {
	case err := <-woken:
		assert.ErrorIs(t, err, syscall.EINVAL)
	case <-time.After(20 * time.Second):
		t.Error("it waits still")
	}
	require.NoError(t, f.Close())
}

// TestDeviceTakenAway: programs that have it open get an event, its queue pairs break, and peers get no message.
func TestDeviceTakenAway(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	s.recv(s.p.b, 7)
	require.True(t, s.fabric.RemoveDevice("soft1"))
	assert.False(t, s.fabric.RemoveDevice("soft1"))
	s.asyncEvent(1, ibv.EVENT_DEVICE_FATAL)
	assert.Equal(t, []ibv.WCStatus{ibv.WC_WR_FLUSH_ERR}, s.statuses(s.p.bRecv))
	require.NoError(t, s.post(s.p.a, s.send(1, ibv.WR_SEND)))
	assert.Equal(t, []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR}, s.statuses(s.p.aSend))
	_, err := verbs.AllocPD(s.context[1])
	assert.ErrorIs(t, err, syscall.EIO)
	var n int32
	list, err := verbs.From{Backend: s.fabric}.GetDeviceList(&n)
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
	require.NoError(t, verbs.FreeDeviceList(list))
	require.NoError(t, s.fabric.AddDevice(DeviceOptions{Name: "soft1"}), "one may come in its place")
}

// TestPostBetweenStartAndEndPoll: the slot of the current completion is free for the next request, as with libmlx5:
// ibv_rc_pingpong -t posts there. The current completion stays readable, even if its place in the queue is taken.
func TestPostBetweenStartAndEndPoll(t *testing.T) {
	r := newRig(t, Options{Virtual: true})
	p := r.pair(ibv.QPT_RC)
	cq, err := verbs.CreateCQEx(r.context[0], &ibv.CQInitAttrEx{CQE: 1, WCFlags: ibv.WC_EX_WITH_BYTE_LEN})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq))) })
	caps := testCaps
	caps.MaxSendWR = 1
	q := r.qp(0, ibv.QPT_RC, caps, verbs.CQExToCQ(cq), p.aRecv)
	r.connect(q, 1, p.b.QPNum)
	require.NoError(t, verbs.ModifyQP(q, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	require.NoError(t, r.post(q, r.send(1, ibv.WR_SEND)))
	require.ErrorIs(t, r.post(q, r.send(2, ibv.WR_SEND)), syscall.ENOMEM)
	require.NoError(t, verbs.StartPoll(cq, &ibv.PollCQAttr{}))
	for id := uint64(2); id < 6; id++ {
		require.NoError(t, r.post(q, r.send(id, ibv.WR_SEND)))
		assert.Equal(t, id-1, cq.WRID)
		require.NoError(t, verbs.NextPoll(cq))
		assert.Equal(t, id, cq.WRID)
		assert.Equal(t, ibv.WC_WR_FLUSH_ERR, cq.Status)
	}
	require.NoError(t, verbs.EndPoll(cq))
}

// TestResizeDuringExtendedPoll: resizing a queue waits for a poll of it, and no other call waits for the resize.
func TestResizeDuringExtendedPoll(t *testing.T) {
	r := newRig(t, Options{})
	p := r.pair(ibv.QPT_RC)
	cqx, err := verbs.CreateCQEx(r.context[0], &ibv.CQInitAttrEx{CQE: 16, WCFlags: 0})
	require.NoError(t, err)
	t.Cleanup(func() { verbs.DestroyCQ((*ibv.CQ)(unsafe.Pointer(cqx))) })
	q := r.qp(0, ibv.QPT_RC, testCaps, (*ibv.CQ)(unsafe.Pointer(cqx)), p.aRecv)
	r.connect(q, 1, p.b.QPNum)
	require.NoError(t, verbs.ModifyQP(q, &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
	require.NoError(t, r.post(q, r.send(1, ibv.WR_SEND)))
	require.NoError(t, verbs.StartPoll(cqx, &ibv.PollCQAttr{}))
	done := make(chan struct{})
	go func() {
		verbs.ResizeCQ((*ibv.CQ)(unsafe.Pointer(cqx)), 32)
		close(done)
	}()
	time.Sleep(50 * time.Millisecond)
	asked := make(chan struct{})
	go func() { r.fabric.Now(); close(asked) }()
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Error("the fabric is locked while a resize waits for who polls")
	}
	verbs.EndPoll(cqx)
	<-done
}

// TestDevicesTakenAwayLeaveNothing: their memory goes with their last user.
func TestDevicesTakenAwayLeaveNothing(t *testing.T) {
	f, err := New(Options{Virtual: true})
	require.NoError(t, err)
	all.mu.RLock()
	before := len(all.objects)
	all.mu.RUnlock()
	for range 10 {
		require.NoError(t, f.AddDevice(DeviceOptions{Name: "x"}))
		require.True(t, f.RemoveDevice("x"))
	}
	all.mu.RLock()
	assert.Equal(t, before, len(all.objects))
	all.mu.RUnlock()
	require.NoError(t, f.Close())
}

// TestCloseWithADeviceTakenAway: one that was taken away may still be open.
func TestCloseWithADeviceTakenAway(t *testing.T) {
	f, err := New(Options{Virtual: true})
	require.NoError(t, err)
	var n int32
	devices, err := verbs.From{Backend: f}.GetDeviceList(&n)
	require.NoError(t, err)
	c, err := verbs.OpenDevice(devices.Deref())
	require.NoError(t, err)
	verbs.FreeDeviceList(devices)
	f.RemoveDevice("soft0")
	assert.ErrorIs(t, f.Close(), syscall.EBUSY)
	require.NoError(t, verbs.CloseDevice(c))
	assert.NoError(t, f.Close())
}

// TestRegionsThatLackSomething: missing setters of a request, and setters without a request, are errors of the region.
// Earlier posted requests are unaffected.
func TestRegionsThatLackSomething(t *testing.T) {
	s := newStage(t, ibv.QPT_RC, Options{})
	x := s.extended(ibv.QP_EX_WITH_SEND)
	require.NoError(t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	copy(s.here.bytes, "waits for a receive")
	require.NoError(t, verbs.WRStart(x))
	x.WRID, x.WRFlags = 1, ibv.SEND_SIGNALED
	require.NoError(t, verbs.WRSend(x))
	require.NoError(t, verbs.WRSetInlineData(x, pointerTo(&s.here.bytes[0]), 19))
	require.NoError(t, verbs.WRComplete(x))
	for name, set := range map[string]func(){
		"SGE":    func() { verbs.WRSetSGE(x, s.here.mr.LKey, s.here.at(100), 4) },
		"inline": func() { verbs.WRSetInlineData(x, pointerTo(&s.here.bytes[100]), 4) },
	} {
		require.NoError(t, verbs.WRStart(x))
		set()
		assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, name)
	}
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, "nothing was started")
	assert.NoError(t, verbs.WRAbort(x))
	s.recv(s.p.b, 7, s.there.sge(0, 64))
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, "waits for a receive", string(s.there.bytes[:19]))

	u := newStage(t, ibv.QPT_UD, Options{})
	x = u.extended(ibv.QP_EX_WITH_SEND)
	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRSend(x))
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, "it goes nowhere")
}
