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
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// extended replaces queue pair a by one with builders.
func (s *testPair) extended(ops ibv.QPCreateSendOpsFlags) *ibv.QPEx {
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
	s := newTestPair(t, ibv.QPT_RC, Options{})
	x := s.extended(ibv.QP_EX_WITH_SEND_WITH_IMM | ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_ATOMIC_WRITE |
		ibv.QP_EX_WITH_FLUSH)
	assert.Zero(t, x.WRRDMARead, "not requested")
	remote, rkey := s.bufB.at(0), s.bufB.mr.RKey
	copy(s.bufA.bytes, "written and sent")
	s.recv(s.p.b, 7, s.bufB.sge(1000, 64))

	require.NoError(t, verbs.WRStart(x))
	x.WRID, x.WRFlags = 1, 0
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRSetSGEList(x, 2, &[]ibv.SGE{s.bufA.sge(0, 8), s.bufA.sge(12, 4)}[0]))
	x.WRID = 2
	require.NoError(t, verbs.WRSendImm(x, ibv.ToBE32(5)))
	require.NoError(t, verbs.WRSetInlineData(x, pointerTo(&s.bufA.bytes[0]), 7))
	x.WRID, x.WRFlags = 3, ibv.SEND_SIGNALED
	value := make([]byte, 8)
	binary.NativeEndian.PutUint64(value, 0x0102030405060708)
	require.NoError(t, verbs.WRAtomicWrite(x, rkey, remote+64, pointerTo(&value[0])))
	x.WRID = 4
	require.NoError(t, verbs.WRFlush(x, rkey, remote, 100, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
	assert.Zero(t, s.bufB.bytes[0], "posted before ibv_wr_complete")
	require.NoError(t, verbs.WRComplete(x))

	assert.Equal(t, ibv.WC{WRID: 3, Opcode: ibv.WC_ATOMIC_WRITE, QPNum: x.QPBase.QPNum}, s.poll(s.p.aSend))
	assert.Equal(t, ibv.WC{WRID: 4, Opcode: ibv.WC_FLUSH, QPNum: x.QPBase.QPNum}, s.poll(s.p.aSend))
	assert.Equal(t, "written sent", string(s.bufB.bytes[:12]))
	assert.EqualValues(t, uint64(0x0102030405060708), binary.NativeEndian.Uint64(s.bufB.bytes[64:]))
	wc := s.poll(s.p.bRecv)
	assert.EqualValues(t, 5, wc.ImmData().Host())
	assert.Equal(t, "written", string(s.bufB.bytes[1000:1007]))

	// If any request of the region is invalid, ibv_wr_complete fails and posts none.
	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRSetInlineData(x, pointerTo(&s.bufA.bytes[0]), 65))
	require.NoError(t, verbs.WRRDMAWrite(x, rkey, remote))
	require.NoError(t, verbs.WRSetSGE(x, s.bufA.mr.LKey, s.bufA.at(0), 8))
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

	noBuilders, err := verbs.QPToQPEx(s.p.b)
	require.NoError(t, err)
	assert.Nil(t, noBuilders, "created without builders")
}

func TestExtendedCompletions(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	cq, err := verbs.CreateCQEx(s.context[1], &ibv.CQInitAttrEx{
		CQE: 8, WCFlags: ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_IMM | ibv.WC_EX_WITH_SRC_QP |
			ibv.WC_EX_WITH_COMPLETION_TIMESTAMP,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(verbs.CQExToCQ(cq))) })
	assert.Zero(t, cq.ReadSL, "not requested")
	to := s.qp(1, ibv.QPT_RC, testCaps, s.p.bSend, verbs.CQExToCQ(cq))
	from := s.qp(0, ibv.QPT_RC, testCaps, s.p.aSend, s.p.aRecv)
	s.connect(from, 1, to.QPNum)
	s.connect(to, 0, from.QPNum)
	attr := new(ibv.PollCQAttr)
	assert.ErrorIs(t, verbs.StartPoll(cq, attr), syscall.ENOENT)
	for id := range uint64(3) {
		s.recv(to, id, s.bufB.sge(0, 64))
		wr := s.send(id, ibv.WR_SEND_WITH_IMM, s.bufA.sge(0, int(id)))
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
			assert.Equal(t, last+1000, stamp, "timestamps are in nanoseconds")
		}
		last = stamp
	}
	assert.ErrorIs(t, verbs.NextPoll(cq), syscall.ENOENT)
	require.NoError(t, verbs.EndPoll(cq))
	assert.ErrorIs(t, verbs.StartPoll(cq, attr), syscall.ENOENT)
	_, err = verbs.CreateCQEx(s.context[1], &ibv.CQInitAttrEx{CQE: 8, WCFlags: ibv.WC_EX_WITH_CVLAN})
	assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
}

// TestCompletionEvents: after arming, a channel gets an event for the next completion, or for the next solicited one.
func TestCompletionEvents(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
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
	pending := func() bool {
		c := impl.Find[impl.Channel](mem.AddressOf(ch))
		c.Fabric().Mu.Lock()
		defer c.Fabric().Mu.Unlock()
		return len(c.Events.Queue) > 0
	}
	takeEvent := func() {
		of, context := s.cqEvent(ch)
		assert.Equal(t, ibv.PtrTo(cq), of)
		assert.EqualValues(t, 0xabcd, context)
	}
	send(0)
	assert.False(t, pending(), "the queue is not armed")
	require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
	assert.False(t, pending(), "earlier completions do not cause an event")
	send(0)
	assert.True(t, pending())
	takeEvent()
	send(0)
	assert.False(t, pending(), "the queue was armed once")
	require.NoError(t, verbs.ReqNotifyCQ(cq, 1))
	send(0)
	assert.False(t, pending())
	send(ibv.SEND_SOLICITED)
	takeEvent()

	require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
	require.NoError(t, verbs.ReqNotifyCQ(cq, 1)) // does not cancel the earlier request
	send(0)
	assert.True(t, pending(), "armed for any completion")
	takeEvent()

	require.NoError(t, verbs.ReqNotifyCQ(cq, 1))
	go func() {
		time.Sleep(10 * time.Millisecond)
		s.fabric.Mu.Lock() // an error counts as solicited
		impl.Find[impl.QP](mem.AddressOf(to)).SetState(ibv.QPS_ERR)
		s.fabric.Unlock()
	}()
	s.recv(to, 2)
	takeEvent()
	require.NoError(t, verbs.DestroyQP(to))
	destroyed := make(chan error)
	go func() { destroyed <- verbs.DestroyCQ(cq) }()
	select {
	case <-destroyed:
		t.Error("the queue was destroyed with unacknowledged events")
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, verbs.AckCQEvents(cq, 4))
	require.NoError(t, <-destroyed)
	require.NoError(t, verbs.DestroyCompChannel(ch))
}

// TestCloseWakesGetAsyncEvent: closing a device wakes goroutines that wait for its events.
func TestCloseWakesGetAsyncEvent(t *testing.T) {
	f, err := New(Options{})
	require.NoError(t, err)
	context, errno := impl.OpenDevice(ibv.PtrTo(f.devices[0].Record))
	require.Zero(t, errno)
	woken := make(chan error)
	go func() { woken <- verbs.GetAsyncEvent(context.Deref(), new(ibv.AsyncEvent)) }()
	time.Sleep(20 * time.Millisecond)
	require.Error(t, f.Close(), "a device is still open")
	require.NoError(t, verbs.CloseDevice(context.Deref()))
	select {
	case err := <-woken:
		assert.ErrorIs(t, err, syscall.EINVAL)
	case <-time.After(20 * time.Second):
		t.Error("ibv_get_async_event still waits")
	}
	require.NoError(t, f.Close())
}

// TestRemoveDevice: programs that have a removed device open get EVENT_DEVICE_FATAL, its queue pairs change to ERR, and
// peers do not get an answer.
func TestRemoveDevice(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
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
	require.NoError(t, s.fabric.AddDevice(DeviceOptions{Name: "soft1"}), "the name can be reused")
}

// TestPostBetweenStartAndEndPoll: the slot of the current completion is free for the next request, as with libmlx5:
// ibv_rc_pingpong -t posts there. The current completion stays readable, even if its slot in the queue is reused.
func TestPostBetweenStartAndEndPoll(t *testing.T) {
	r := newTestbed(t, Options{Virtual: true})
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

// TestResizeDuringExtendedPoll: ibv_resize_cq waits until a poll of the queue ends, and does not block other calls.
func TestResizeDuringExtendedPoll(t *testing.T) {
	r := newTestbed(t, Options{})
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
	unlocked := make(chan struct{})
	go func() { r.fabric.Now(); close(unlocked) }()
	select {
	case <-unlocked:
	case <-time.After(20 * time.Second):
		t.Error("the fabric is locked while a resize waits for a poll")
	}
	verbs.EndPoll(cqx)
	<-done
}

// TestRemoveDeviceFreesMemory: the memory of a removed device is freed with its last user.
func TestRemoveDeviceFreesMemory(t *testing.T) {
	f, err := New(Options{Virtual: true})
	require.NoError(t, err)
	before := impl.Objects()
	for range 10 {
		require.NoError(t, f.AddDevice(DeviceOptions{Name: "x"}))
		require.True(t, f.RemoveDevice("x"))
	}
	assert.Equal(t, before, impl.Objects())
	require.NoError(t, f.Close())
}

// TestCloseWithRemovedDevice: a fabric cannot be closed while a removed device is open.
func TestCloseWithRemovedDevice(t *testing.T) {
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

// TestIncompleteRegions: ibv_wr_complete fails if a request lacks a setter, or a setter has no request. Earlier posted
// requests are unaffected.
func TestIncompleteRegions(t *testing.T) {
	s := newTestPair(t, ibv.QPT_RC, Options{})
	x := s.extended(ibv.QP_EX_WITH_SEND)
	require.NoError(t, verbs.ModifyQP(s.p.b, &ibv.QPAttr{QPState: ibv.QPS_SQD}, ibv.QP_STATE))
	copy(s.bufA.bytes, "waits for a receive")
	require.NoError(t, verbs.WRStart(x))
	x.WRID, x.WRFlags = 1, ibv.SEND_SIGNALED
	require.NoError(t, verbs.WRSend(x))
	require.NoError(t, verbs.WRSetInlineData(x, pointerTo(&s.bufA.bytes[0]), 19))
	require.NoError(t, verbs.WRComplete(x))
	for name, set := range map[string]func(){
		"SGE":    func() { verbs.WRSetSGE(x, s.bufA.mr.LKey, s.bufA.at(100), 4) },
		"inline": func() { verbs.WRSetInlineData(x, pointerTo(&s.bufA.bytes[100]), 4) },
	} {
		require.NoError(t, verbs.WRStart(x))
		set()
		assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, name)
	}
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, "no region was started")
	assert.NoError(t, verbs.WRAbort(x))
	s.recv(s.p.b, 7, s.bufB.sge(0, 64))
	assert.Equal(t, ibv.WC_SUCCESS, s.poll(s.p.aSend).Status)
	assert.Equal(t, "waits for a receive", string(s.bufB.bytes[:19]))

	u := newTestPair(t, ibv.QPT_UD, Options{})
	x = u.extended(ibv.QP_EX_WITH_SEND)
	require.NoError(t, verbs.WRStart(x))
	require.NoError(t, verbs.WRSend(x))
	assert.ErrorIs(t, verbs.WRComplete(x), syscall.EINVAL, "no destination")
}
