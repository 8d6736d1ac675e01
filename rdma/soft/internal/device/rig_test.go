// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"os"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	tests "github.com/goverbs/goverbs/rdma/soft/internal/rig"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/delayed"
)

// rig is a fabric and its devices, opened, for tests that drive them through the generated functions alone.
type rig struct {
	t        testing.TB
	fabric   *Fabric
	context  []*ibv.Context
	pd       []*ibv.PD
	notReady uint8  // min_rnr_timer of queue pairs
	arrived  func() // waits until no message is under way; nil where none ever is
}

// fromElsewhere delivers messages on separate goroutines, in order, like a packet wire.
func (r *rig) fromElsewhere() {
	var underWay sync.WaitGroup
	var queue []func()
	first := func() {
		arrive := queue[0]
		queue = queue[1:]
		arrive()
	}
	r.fabric.Tap(func(w wire.Wire) wire.Wire {
		return delayed.Over(w, func(arrive func()) {
			queue = append(queue, arrive)
			underWay.Go(func() { r.fabric.Deliver(first) })
		})
	})
	r.arrived = underWay.Wait
}

func newRig(t testing.TB, o Options) *rig {
	f, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	r := &rig{t: t, fabric: f, notReady: 1}
	var n int32
	devices, err := verbs.From{Backend: f}.GetDeviceList(&n)
	require.NoError(t, err)
	for _, d := range unsafe.Slice(devices, n) {
		c, err := verbs.OpenDevice(d.Deref())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.CloseDevice(c)) })
		pd, err := verbs.AllocPD(c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(pd)) })
		r.context, r.pd = append(r.context, c), append(r.pd, pd)
	}
	require.NoError(t, verbs.FreeDeviceList(devices))
	return r
}

type buffer struct {
	bytes []byte
	mr    *ibv.MR
}

const everything = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC | ibv.ACCESS_FLUSH_GLOBAL

func (r *rig) buffer(device, size int, access ibv.AccessFlags) *buffer {
	b := &buffer{bytes: outside[byte](r, size)}
	mr, err := verbs.RegMR(r.pd[device], pointerTo(&b.bytes[0]), uint64(size), access)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DeregMR(mr)) })
	b.mr = mr
	return b
}

func (b *buffer) at(offset int) uint64 { return uint64(mem.AddressOf(&b.bytes[offset])) }

func (b *buffer) sge(offset, length int) ibv.SGE {
	return ibv.SGE{Addr: b.at(offset), Length: uint32(length), LKey: b.mr.LKey}
}

func (r *rig) cq(device, entries int) *ibv.CQ {
	cq, err := verbs.CreateCQ(r.context[device], entries, 0, nil, 0)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyCQ(cq)) })
	return cq
}

// outside is n zeroed T's outside Go's heap.
func outside[T any](r *rig, n int) []T { return tests.Outside[T](r.t, n) }

// within makes a call that waits for an event, and fails the test by the event's name when it does not come.
func (r *rig) within(event any, wait func() error) {
	r.t.Helper()
	tests.Within(r.t, event, wait)
}

type hostile = tests.Hostile

var testCaps = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}

func (r *rig) qp(device int, kind ibv.QPType, caps ibv.QPCap, send, recv *ibv.CQ) *ibv.QP {
	qp, err := verbs.CreateQP(r.pd[device],
		&ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(send), RecvCQ: ibv.PtrTo(recv), Cap: caps})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyQP(qp)) })
	return qp
}

const testQKey = 0x11111111

func (r *rig) av(device int) ibv.AHAttr {
	a := ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{SGIDIndex: 1, HopLimit: 1}}
	require.NoError(r.t, verbs.QueryGID(r.context[device], 1, 1, &a.GRH.DGID))
	return a
}

// connect brings a queue pair to RTS, with a peer on a device.
func (r *rig) connect(qp *ibv.QP, device int, peer uint32) {
	r.toRTR(qp, device, peer)
	r.toRTS(qp)
}

func (r *rig) toRTR(qp *ibv.QP, device int, peer uint32) {
	attr := &ibv.QPAttr{
		QPState: ibv.QPS_INIT, PortNum: 1, QPAccessFlags: everything, QKey: testQKey, PathMTU: ibv.MTU_1024,
		DestQPNum: peer, RQPSN: 77, MaxDestRdAtomic: 4,
		MinRNRTimer: r.notReady, AHAttr: r.av(device),
	}
	if qp.QPType == ibv.QPT_UD {
		require.NoError(r.t, verbs.ModifyQP(qp, attr, ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_QKEY))
	} else {
		require.NoError(r.t, verbs.ModifyQP(qp, attr, ibv.QP_STATE|ibv.QP_PKEY_INDEX|ibv.QP_PORT|ibv.QP_ACCESS_FLAGS))
	}
	attr.QPState = ibv.QPS_RTR
	mask := ibv.QP_STATE
	if qp.QPType != ibv.QPT_UD {
		mask |= ibv.QP_AV | ibv.QP_PATH_MTU | ibv.QP_DEST_QPN | ibv.QP_RQ_PSN
	}
	if qp.QPType == ibv.QPT_RC || qp.QPType == ibv.QPT_XRC_RECV {
		mask |= ibv.QP_MAX_DEST_RD_ATOMIC | ibv.QP_MIN_RNR_TIMER
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

func (r *rig) toRTS(qp *ibv.QP) {
	attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 14, RetryCnt: 2, RNRRetry: 2, MaxRdAtomic: 4}
	mask := ibv.QP_STATE | ibv.QP_SQ_PSN
	if qp.QPType == ibv.QPT_RC || qp.QPType == ibv.QPT_XRC_SEND {
		mask |= ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// pair is two queue pairs on two devices, connected.
type pair struct {
	a, b                       *ibv.QP
	aSend, aRecv, bSend, bRecv *ibv.CQ
}

func (r *rig) pair(kind ibv.QPType) *pair {
	p := &pair{aSend: r.cq(0, 16), aRecv: r.cq(0, 16), bSend: r.cq(1, 16), bRecv: r.cq(1, 16)}
	p.a, p.b = r.qp(0, kind, testCaps, p.aSend, p.aRecv), r.qp(1, kind, testCaps, p.bSend, p.bRecv)
	r.connect(p.a, 1, p.b.QPNum)
	r.connect(p.b, 0, p.a.QPNum)
	return p
}

// recv posts a receive.
func (r *rig) recv(qp *ibv.QP, id uint64, sges ...ibv.SGE) {
	require.NoError(r.t, r.tryRecv(qp, id, sges...))
}

func (r *rig) tryRecv(qp *ibv.QP, id uint64, sges ...ibv.SGE) error {
	wr, bad := &outside[ibv.RecvWR](r, 1)[0], &outside[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
	copied := outside[ibv.SGE](r, len(sges))
	copy(copied, sges)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(unsafe.SliceData(copied)), NumSGE: int32(len(sges))}
	return verbs.PostRecv(qp, wr, bad)
}

// send makes a signalled work request.
func (r *rig) send(id uint64, opcode ibv.WROpcode, sges ...ibv.SGE) *ibv.SendWR {
	wr, copied := &outside[ibv.SendWR](r, 1)[0], outside[ibv.SGE](r, len(sges))
	copy(copied, sges)
	*wr = ibv.SendWR{WRID: id, Opcode: opcode, SendFlags: ibv.SEND_SIGNALED,
		SGList: ibv.PtrTo(unsafe.SliceData(copied)), NumSGE: int32(len(sges))}
	return wr
}

func (r *rig) post(qp *ibv.QP, wr *ibv.SendWR) error {
	return verbs.PostSend(qp, wr, &outside[ibv.Ptr[ibv.SendWR]](r, 1)[0])
}

// polled is the next completion; poll is where one has to be.
func (r *rig) polled(cq *ibv.CQ) (ibv.WC, bool) {
	if r.arrived != nil {
		r.arrived()
	}
	wc := &outside[ibv.WC](r, 1)[0]
	n, err := verbs.PollCQ(cq, 1, wc)
	require.NoError(r.t, err)
	return *wc, n == 1
}

func (r *rig) poll(cq *ibv.CQ) ibv.WC {
	r.t.Helper()
	wc, ok := r.polled(cq)
	takesTime := slices.Contains([]string{"delayed", "packets", "lossy"}, os.Getenv(wireVariable))
	for tries := 0; !ok && takesTime && tries < 1000; tries++ {
		time.Sleep(100 * time.Microsecond)
		wc, ok = r.polled(cq)
	}
	require.True(r.t, ok, "no completion")
	return wc
}

// asyncEvent takes the next event of a device's, which has to be of a type.
func (r *rig) asyncEvent(device int, want ibv.EventType) *ibv.AsyncEvent {
	r.t.Helper()
	event := &outside[ibv.AsyncEvent](r, 1)[0]
	r.within(want, func() error { return verbs.GetAsyncEvent(r.context[device], event) })
	require.Equal(r.t, want, event.EventType)
	return event
}

// cqEvent takes the next event of a completion channel.
func (r *rig) cqEvent(ch *ibv.CompChannel) (of ibv.Ptr[ibv.CQ], context uintptr) {
	r.t.Helper()
	got, its := &outside[ibv.Ptr[ibv.CQ]](r, 1)[0], &outside[uintptr](r, 1)[0]
	r.within("a completion event", func() error { return verbs.GetCQEvent(ch, got, its) })
	return *got, *its
}

// pointerTo is where v is, for functions that take C's pointers.
func pointerTo[T any](v *T) uintptr { return uintptr(mem.AddressOf(v)) }
