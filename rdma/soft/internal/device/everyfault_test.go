// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	own "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// everyOp is a sender that builds requests, and its peer: on RC with its own receives, on XRC with shared ones.
type everyOp struct {
	*rig
	kind        ibv.QPType
	a, b        *ibv.QP
	x           *ibv.QPEx
	send, recvs *ibv.CQ
	srq         *ibv.SRQ
	number      uint32
	here, there *buffer
	window      *ibv.MW
	bind        *ibv.CQ
	key         uint32 // of the window
}

// everyOps are the operations that are tried, with the flags that a queue pair is created with.
var everyOps = map[ibv.WROpcode]ibv.QPCreateSendOpsFlags{
	ibv.WR_SEND: ibv.QP_EX_WITH_SEND, ibv.WR_SEND_WITH_IMM: ibv.QP_EX_WITH_SEND_WITH_IMM,
	ibv.WR_SEND_WITH_INV: ibv.QP_EX_WITH_SEND_WITH_INV,
	ibv.WR_RDMA_WRITE:    ibv.QP_EX_WITH_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM: ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	ibv.WR_RDMA_READ:            ibv.QP_EX_WITH_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP:   ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	ibv.WR_ATOMIC_FETCH_AND_ADD: ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	ibv.WR_FLUSH:                ibv.QP_EX_WITH_FLUSH, ibv.WR_ATOMIC_WRITE: ibv.QP_EX_WITH_ATOMIC_WRITE,
}

func newEveryOp(t *testing.T, kind ibv.QPType, op ibv.WROpcode, o Options) *everyOp {
	o.Virtual = true
	r := &everyOp{rig: newRig(t, o), kind: kind}
	r.send, r.recvs, r.bind = r.cq(0, 64), r.cq(1, 64), r.cq(1, 16)
	var err error
	r.a, err = verbs.CreateQPEx(r.context[0], &ibv.QPInitAttrEx{
		QPType: kind, SendCQ: ibv.PtrTo(r.send), RecvCQ: ibv.PtrTo(r.send), Cap: testCaps, PD: ibv.PtrTo(r.pd[0]),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: everyOps[op],
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(r.a)) })
	r.x, err = verbs.QPToQPEx(r.a)
	require.NoError(t, err)
	if kind == ibv.QPT_XRC_SEND {
		r.shared(t)
	} else {
		r.b = r.qp(1, kind, testCaps, r.bind, r.recvs)
	}
	r.patient(r.a, 1, r.b.QPNum)
	r.patient(r.b, 0, r.a.QPNum)
	r.here, r.there = r.buffer(0, 4096, everything), r.buffer(1, 4096, everything|ibv.ACCESS_MW_BIND)
	return r
}

// shared makes the receiving side of XRC.
func (r *everyOp) shared(t *testing.T) {
	xrcd, err := r.openXRCD(1, -1, own.OCreate)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.CloseXRCD(xrcd)) })
	r.srq, err = verbs.CreateSRQEx(r.context[1], &ibv.SRQInitAttrEx{
		Attr: ibv.SRQAttr{MaxWR: 64, MaxSGE: 1}, SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(r.pd[1]), XRCD: ibv.PtrTo(xrcd),
		CQ:       ibv.PtrTo(r.recvs),
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(r.srq)) })
	number := new(uint32)
	require.NoError(t, verbs.GetSRQNum(r.srq, number))
	r.number = *number
	r.b, err = verbs.CreateQPEx(r.context[1],
		&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(xrcd), CompMask: ibv.QP_INIT_ATTR_XRCD})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(r.b)) })
}

// patient connects a queue pair that tries seven times, and for ever where its peer is not ready.
func (r *everyOp) patient(qp *ibv.QP, device int, peer uint32) {
	r.toRTR(qp, device, peer)
	attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 8, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4}
	mask := ibv.QP_STATE | ibv.QP_SQ_PSN
	switch qp.QPType {
	case ibv.QPT_XRC_RECV:
		mask |= ibv.QP_TIMEOUT
	case ibv.QPT_RC, ibv.QPT_XRC_SEND:
		mask |= ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC
	}
	require.NoError(r.t, verbs.ModifyQP(qp, attr, mask))
}

// takes reports whether an operation takes a receive.
func takes(op ibv.WROpcode) bool {
	switch op {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE_WITH_IMM:
		return true
	}
	return false
}

// receive posts a receive of 64 bytes at 1024.
func (r *everyOp) receive(id uint64) {
	if r.srq == nil {
		r.recv(r.b, id, r.there.sge(1024, 64))
		return
	}
	wr, sge := &outside[ibv.RecvWR](r.rig, 1)[0], outside[ibv.SGE](r.rig, 1)
	sge[0] = r.there.sge(1024, 64)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&sge[0]), NumSGE: 1}
	require.NoError(r.t, verbs.PostSRQRecv(r.srq, wr, &outside[ibv.Ptr[ibv.RecvWR]](r.rig, 1)[0]))
}

// request posts the i-th request of an operation: i comes to the peer's memory, or from it.
func (r *everyOp) request(op ibv.WROpcode, i uint64) {
	x, there, rkey := r.x, r.there.at(0), r.there.mr.RKey
	key := uint32(0)
	if op == ibv.WR_SEND_WITH_INV {
		key = r.boundWindow()
	}
	require.NoError(r.t, verbs.WRStart(x))
	x.WRID, x.WRFlags = i, ibv.SEND_SIGNALED
	local := true
	switch op {
	case ibv.WR_SEND:
		require.NoError(r.t, verbs.WRSend(x))
	case ibv.WR_SEND_WITH_IMM:
		require.NoError(r.t, verbs.WRSendImm(x, ibv.ToBE32(uint32(i))))
	case ibv.WR_SEND_WITH_INV:
		require.NoError(r.t, verbs.WRSendInv(x, key))
	case ibv.WR_RDMA_WRITE:
		require.NoError(r.t, verbs.WRRDMAWrite(x, rkey, there))
	case ibv.WR_RDMA_WRITE_WITH_IMM:
		require.NoError(r.t, verbs.WRRDMAWriteImm(x, rkey, there, ibv.ToBE32(uint32(i))))
	case ibv.WR_RDMA_READ:
		require.NoError(r.t, verbs.WRRDMARead(x, rkey, there))
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		require.NoError(r.t, verbs.WRAtomicCmpSwp(x, rkey, there, i-1, i))
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		require.NoError(r.t, verbs.WRAtomicFetchAdd(x, rkey, there, 1))
	case ibv.WR_FLUSH:
		require.NoError(r.t, verbs.WRFlush(x, rkey, there, 8, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
		local = false
	case ibv.WR_ATOMIC_WRITE:
		value := outside[uint64](r.rig, 1)
		value[0] = i
		require.NoError(r.t, verbs.WRAtomicWrite(x, rkey, there, pointerTo(&value[0])))
		local = false
	}
	if r.kind == ibv.QPT_XRC_SEND {
		require.NoError(r.t, verbs.WRSetXRCSRQN(x, r.number))
	}
	if local {
		require.NoError(r.t, verbs.WRSetSGE(x, r.here.mr.LKey, r.here.at(0), 8))
	}
	require.NoError(r.t, verbs.WRComplete(x))
}

// boundWindow binds a new window of type 2 on the peer, and returns its key.
func (r *everyOp) boundWindow() uint32 {
	if r.window == nil {
		w, err := verbs.AllocMW(r.pd[1], ibv.MW_TYPE_2)
		require.NoError(r.t, err)
		r.t.Cleanup(func() { require.NoError(r.t, verbs.DeallocMW(w)) })
		r.window = w
		r.key = w.RKey
	}
	r.key = verbs.IncRKey(r.key)
	wr := r.rig.send(0, ibv.WR_BIND_MW)
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(r.window), RKey: r.key, BindInfo: ibv.MWBindInfo{
		MR: ibv.PtrTo(r.there.mr), Addr: r.there.at(0), Length: 64, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
	}}
	require.NoError(r.t, r.post(r.b, wr))
	require.Equal(r.t, ibv.WC_SUCCESS, r.poll(r.bind).Status)
	return r.key
}

// until polls until a completion comes, as time goes on.
func (r *everyOp) until(cq *ibv.CQ) ibv.WC {
	for range 10_000 {
		if wc, ok := r.polled(cq); ok {
			return wc
		}
	}
	require.FailNow(r.t, "no completion")
	return ibv.WC{}
}

// TestEveryOperationOnABadFabric: messages that are lost, late, or come twice are carried out once, in order, and
// complete once.
func TestEveryOperationOnABadFabric(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_XRC_SEND} {
		for op, flag := range everyOps {
			// whose receivers have no windows
			if own.Buildable(kind, flag) != 0 || kind == ibv.QPT_XRC_SEND && op == ibv.WR_SEND_WITH_INV {
				continue
			}
			for name, faults := range map[string]Faults{
				"lost": {Seed: 3, Drop: 0.25}, "twice": {Duplicate: 1}, "late": {Delay: 1, Late: time.Millisecond},
				"all": {Seed: 5, Drop: 0.2, Duplicate: 0.5, Delay: 0.5, Late: 3 * time.Microsecond},
			} {
				t.Run(fmt.Sprint(kind, " ", op, " ", name), func(t *testing.T) {
					r := newEveryOp(t, kind, op, Options{Faults: faults})
					for i := uint64(1); i <= 40; i++ {
						r.once(op, i)
					}
					_, more := r.polled(r.send)
					assert.False(t, more)
					_, more = r.polled(r.recvs)
					assert.False(t, more)
				})
			}
		}
	}
}

// once executes one request, and checks all its effects.
func (r *everyOp) once(op ibv.WROpcode, i uint64) {
	t := r.t
	word := func(b *buffer, at int) uint64 { return binary.NativeEndian.Uint64(b.bytes[at:]) }
	binary.NativeEndian.PutUint64(r.here.bytes, i)
	if op == ibv.WR_RDMA_READ {
		binary.NativeEndian.PutUint64(r.there.bytes, i)
		binary.NativeEndian.PutUint64(r.here.bytes, 0)
	}
	if takes(op) {
		r.receive(i)
	}
	r.request(op, i)
	wc := r.until(r.send)
	require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	require.Equal(t, i, wc.WRID)
	if takes(op) {
		wc := r.poll(r.recvs)
		require.Equal(t, ibv.WC_SUCCESS, wc.Status)
		require.Equal(t, i, wc.WRID)
	}
	switch op {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		require.Equal(t, i, word(r.there, 1024))
	case ibv.WR_FLUSH:
	case ibv.WR_RDMA_READ:
		require.Equal(t, i, word(r.here, 0))
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		require.Equal(t, i-1, word(r.here, 0), "what it found")
		require.Equal(t, i, word(r.there, 0))
	default:
		require.Equal(t, i, word(r.there, 0))
	}
}

// TestEveryOperationWhileALinkIsDown: posted requests are retransmitted, and executed once when the link is up; if it
// stays down, or the peer is gone, the first ends with its status, and later ones are flushed.
func TestEveryOperationWhileALinkIsDown(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_XRC_SEND} {
		for op, flag := range everyOps {
			if own.Buildable(kind, flag) != 0 || op == ibv.WR_SEND_WITH_INV {
				continue
			}
			t.Run(fmt.Sprint(kind, " ", op), func(t *testing.T) {
				for _, which := range []string{"soft0", "soft1"} {
					r := newEveryOp(t, kind, op, Options{})
					r.once(op, 1)
					require.True(t, r.fabric.SetLink(which, false))
					r.receive(2)
					binary.NativeEndian.PutUint64(r.here.bytes, 2)
					r.request(op, 2)
					r.fabric.Advance(3 * time.Millisecond)
					_, done := r.polled(r.recvs)
					require.False(t, done)
					require.True(t, r.fabric.SetLink(which, true))
					require.Equal(t, ibv.WC_SUCCESS, r.until(r.send).Status)
					_, done = r.polled(r.recvs)
					require.Equal(t, takes(op), done)
					_, done = r.polled(r.recvs)
					require.False(t, done)

					require.True(t, r.fabric.SetLink(which, false))
					r.request(op, 3)
					r.request(op, 4)
					require.Equal(t, ibv.WC_RETRY_EXC_ERR, r.until(r.send).Status)
					require.Equal(t, ibv.WC_WR_FLUSH_ERR, r.until(r.send).Status)
				}
				gone := newEveryOp(t, kind, op, Options{})
				gone.request(op, 1)
				require.True(t, gone.fabric.RemoveDevice("soft1"))
				if !takes(op) {
					require.Equal(t, ibv.WC_SUCCESS, gone.until(gone.send).Status)
					gone.request(op, 2)
				}
				require.Equal(t, ibv.WC_RETRY_EXC_ERR, gone.until(gone.send).Status)

				if takes(op) {
					storm := newEveryOp(t, kind, op, Options{Faults: Faults{NotReady: true}})
					storm.receive(1)
					storm.request(op, 1)
					for range 1000 {
						_, done := storm.polled(storm.send)
						require.False(t, done)
					}
					require.Greater(t, storm.fabric.Counters().NotReady, uint64(1000))
					storm.fabric.SetFaults(Faults{})
					require.Equal(t, ibv.WC_SUCCESS, storm.until(storm.send).Status)
					require.Equal(t, ibv.WC_SUCCESS, storm.poll(storm.recvs).Status)
				}
			})
		}
	}
}

// TestNotReadyIsNotLost: answers that the peer is not ready show that nothing is lost, however late they come.
func TestNotReadyIsNotLost(t *testing.T) {
	r := newEveryOp(t, ibv.QPT_RC, ibv.WR_SEND, Options{})
	r.fromElsewhere()
	r.request(ibv.WR_SEND, 1)
	for range 30 {
		_, done := r.polled(r.send)
		require.False(t, done)
	}
	require.Greater(t, r.fabric.Counters().NotReady, uint64(10))
	r.receive(1)
	require.Equal(t, ibv.WC_SUCCESS, r.until(r.send).Status)
}
