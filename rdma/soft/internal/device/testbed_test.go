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
	tests "github.com/goverbs/goverbs/rdma/soft/internal/testbed"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/delayed"
)

// testbed is a fabric with its devices opened, for tests that use only the generated functions.
type testbed struct {
	t             testing.TB
	fabric        *Fabric
	context       []*ibv.Context
	pd            []*ibv.PD
	rnrTimer      uint8  // min_rnr_timer of queue pairs
	waitDelivered func() // waits until no message is in flight; nil if messages are delivered synchronously
}

// deliverAsync delivers messages on separate goroutines, in order, like a packet wire.
func (r *testbed) deliverAsync() {
	var inFlight sync.WaitGroup
	var queue []func()
	first := func() {
		arrive := queue[0]
		queue = queue[1:]
		arrive()
	}
	r.fabric.Tap(func(w wire.Wire) wire.Wire {
		return delayed.Over(w, func(arrive func()) {
			queue = append(queue, arrive)
			inFlight.Go(func() { r.fabric.Deliver(first) })
		})
	})
	r.waitDelivered = inFlight.Wait
}

func newTestbed(t testing.TB, o Options) *testbed {
	f, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	r := &testbed{t: t, fabric: f, rnrTimer: 1}
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

const allAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC | ibv.ACCESS_FLUSH_GLOBAL

func (r *testbed) buffer(device, size int, access ibv.AccessFlags) *buffer {
	b := &buffer{bytes: offHeap[byte](r, size)}
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

func (r *testbed) cq(device, entries int) *ibv.CQ {
	cq, err := verbs.CreateCQ(r.context[device], entries, 0, nil, 0)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyCQ(cq)) })
	return cq
}

// offHeap returns n zeroed values outside Go's heap.
func offHeap[T any](r *testbed, n int) []T { return tests.Outside[T](r.t, n) }

// within calls wait. If it does not return in time, the test fails with the event's name.
func (r *testbed) within(event any, wait func() error) {
	r.t.Helper()
	tests.Within(r.t, event, wait)
}

type fuzzInput = tests.Hostile

var testCaps = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}

func (r *testbed) qp(device int, kind ibv.QPType, caps ibv.QPCap, send, recv *ibv.CQ) *ibv.QP {
	qp, err := verbs.CreateQP(r.pd[device],
		&ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(send), RecvCQ: ibv.PtrTo(recv), Cap: caps})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, verbs.DestroyQP(qp)) })
	return qp
}

const testQKey = 0x11111111

func (r *testbed) av(device int) ibv.AHAttr {
	a := ibv.AHAttr{PortNum: 1, IsGlobal: 1, GRH: ibv.GlobalRoute{SGIDIndex: 1, HopLimit: 1}}
	require.NoError(r.t, verbs.QueryGID(r.context[device], 1, 1, &a.GRH.DGID))
	return a
}

// connect moves a queue pair to RTS, with a peer on the given device.
func (r *testbed) connect(qp *ibv.QP, device int, peer uint32) {
	r.toRTR(qp, device, peer)
	r.toRTS(qp)
}

func (r *testbed) toRTR(qp *ibv.QP, device int, peer uint32) {
	attr := &ibv.QPAttr{
		QPState: ibv.QPS_INIT, PortNum: 1, QPAccessFlags: allAccess, QKey: testQKey, PathMTU: ibv.MTU_1024,
		DestQPNum: peer, RQPSN: 77, MaxDestRdAtomic: 4,
		MinRNRTimer: r.rnrTimer, AHAttr: r.av(device),
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

func (r *testbed) toRTS(qp *ibv.QP) {
	attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 14, RetryCnt: 2, RNRRetry: 2, MaxRdAtomic: 4}
	mask := ibv.QP_STATE | ibv.QP_SQ_PSN
	if qp.QPType == ibv.QPT_RC || qp.QPType == ibv.QPT_XRC_SEND {
		mask |= ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// pair is two connected queue pairs on two devices.
type pair struct {
	a, b                       *ibv.QP
	aSend, aRecv, bSend, bRecv *ibv.CQ
}

func (r *testbed) pair(kind ibv.QPType) *pair {
	p := &pair{aSend: r.cq(0, 16), aRecv: r.cq(0, 16), bSend: r.cq(1, 16), bRecv: r.cq(1, 16)}
	p.a, p.b = r.qp(0, kind, testCaps, p.aSend, p.aRecv), r.qp(1, kind, testCaps, p.bSend, p.bRecv)
	r.connect(p.a, 1, p.b.QPNum)
	r.connect(p.b, 0, p.a.QPNum)
	return p
}

// recv posts a receive.
func (r *testbed) recv(qp *ibv.QP, id uint64, sges ...ibv.SGE) {
	require.NoError(r.t, r.tryRecv(qp, id, sges...))
}

func (r *testbed) tryRecv(qp *ibv.QP, id uint64, sges ...ibv.SGE) error {
	wr, bad := &offHeap[ibv.RecvWR](r, 1)[0], &offHeap[ibv.Ptr[ibv.RecvWR]](r, 1)[0]
	copied := offHeap[ibv.SGE](r, len(sges))
	copy(copied, sges)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(unsafe.SliceData(copied)), NumSGE: int32(len(sges))}
	return verbs.PostRecv(qp, wr, bad)
}

// send returns a signalled work request.
func (r *testbed) send(id uint64, opcode ibv.WROpcode, sges ...ibv.SGE) *ibv.SendWR {
	wr, copied := &offHeap[ibv.SendWR](r, 1)[0], offHeap[ibv.SGE](r, len(sges))
	copy(copied, sges)
	*wr = ibv.SendWR{WRID: id, Opcode: opcode, SendFlags: ibv.SEND_SIGNALED,
		SGList: ibv.PtrTo(unsafe.SliceData(copied)), NumSGE: int32(len(sges))}
	return wr
}

func (r *testbed) post(qp *ibv.QP, wr *ibv.SendWR) error {
	return verbs.PostSend(qp, wr, &offHeap[ibv.Ptr[ibv.SendWR]](r, 1)[0])
}

// tryPoll returns the next completion, if there is one.
func (r *testbed) tryPoll(cq *ibv.CQ) (ibv.WC, bool) {
	if r.waitDelivered != nil {
		r.waitDelivered()
	}
	wc := &offHeap[ibv.WC](r, 1)[0]
	n, err := verbs.PollCQ(cq, 1, wc)
	require.NoError(r.t, err)
	return *wc, n == 1
}

func (r *testbed) poll(cq *ibv.CQ) ibv.WC {
	r.t.Helper()
	wc, ok := r.tryPoll(cq)
	async := slices.Contains([]string{"delayed", "packets", "lossy"}, os.Getenv(wireVariable))
	for tries := 0; !ok && async && tries < 1000; tries++ {
		time.Sleep(100 * time.Microsecond)
		wc, ok = r.tryPoll(cq)
	}
	require.True(r.t, ok, "no completion")
	return wc
}

// asyncEvent returns the next event of a device, which must have type want.
func (r *testbed) asyncEvent(device int, want ibv.EventType) *ibv.AsyncEvent {
	r.t.Helper()
	event := &offHeap[ibv.AsyncEvent](r, 1)[0]
	r.within(want, func() error { return verbs.GetAsyncEvent(r.context[device], event) })
	require.Equal(r.t, want, event.EventType)
	return event
}

// cqEvent returns the next event of a completion channel.
func (r *testbed) cqEvent(ch *ibv.CompChannel) (of ibv.Ptr[ibv.CQ], context uintptr) {
	r.t.Helper()
	got, its := &offHeap[ibv.Ptr[ibv.CQ]](r, 1)[0], &offHeap[uintptr](r, 1)[0]
	r.within("a completion event", func() error { return verbs.GetCQEvent(ch, got, its) })
	return *got, *its
}

// pointerTo returns the address of v, for functions with C pointers as parameters.
func pointerTo[T any](v *T) uintptr { return uintptr(mem.AddressOf(v)) }
