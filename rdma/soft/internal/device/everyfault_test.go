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
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// opTestbed is a sender with builders, and its receiver: an RC queue pair with a receive queue, or XRC with a shared
// receive queue.
type opTestbed struct {
	*testbed
	kind        ibv.QPType
	a, b        *ibv.QP
	x           *ibv.QPEx
	send, recvs *ibv.CQ
	srq         *ibv.SRQ
	number      uint32
	bufA, bufB  *buffer
	window      *ibv.MW
	bind        *ibv.CQ
	key         uint32 // of the window
}

// testedOps maps the tested operations to the flags that queue pairs are created with.
var testedOps = map[ibv.WROpcode]ibv.QPCreateSendOpsFlags{
	ibv.WR_SEND: ibv.QP_EX_WITH_SEND, ibv.WR_SEND_WITH_IMM: ibv.QP_EX_WITH_SEND_WITH_IMM,
	ibv.WR_SEND_WITH_INV: ibv.QP_EX_WITH_SEND_WITH_INV,
	ibv.WR_RDMA_WRITE:    ibv.QP_EX_WITH_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM: ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	ibv.WR_RDMA_READ:            ibv.QP_EX_WITH_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP:   ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	ibv.WR_ATOMIC_FETCH_AND_ADD: ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	ibv.WR_FLUSH:                ibv.QP_EX_WITH_FLUSH, ibv.WR_ATOMIC_WRITE: ibv.QP_EX_WITH_ATOMIC_WRITE,
}

func newOpTestbed(t *testing.T, kind ibv.QPType, op ibv.WROpcode, o Options) *opTestbed {
	o.Virtual = true
	r := &opTestbed{testbed: newTestbed(t, o), kind: kind}
	r.send, r.recvs, r.bind = r.cq(0, 64), r.cq(1, 64), r.cq(1, 16)
	var err error
	r.a, err = verbs.CreateQPEx(r.context[0], &ibv.QPInitAttrEx{
		QPType: kind, SendCQ: ibv.PtrTo(r.send), RecvCQ: ibv.PtrTo(r.send), Cap: testCaps, PD: ibv.PtrTo(r.pd[0]),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: testedOps[op],
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyQP(r.a)) })
	r.x, err = verbs.QPToQPEx(r.a)
	require.NoError(t, err)
	if kind == ibv.QPT_XRC_SEND {
		r.createXRCReceiver(t)
	} else {
		r.b = r.qp(1, kind, testCaps, r.bind, r.recvs)
	}
	r.connectWithRetries(r.a, 1, r.b.QPNum)
	r.connectWithRetries(r.b, 0, r.a.QPNum)
	r.bufA, r.bufB = r.buffer(0, 4096, allAccess), r.buffer(1, 4096, allAccess|ibv.ACCESS_MW_BIND)
	return r
}

// createXRCReceiver creates the receiving side of XRC.
func (r *opTestbed) createXRCReceiver(t *testing.T) {
	xrcd, err := r.openXRCD(1, -1, impl.OCreate)
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

// connectWithRetries connects a queue pair with seven retries, and RNR retries without limit.
func (r *opTestbed) connectWithRetries(qp *ibv.QP, device int, peer uint32) {
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

// consumesReceive reports whether an operation consumes a receive.
func consumesReceive(op ibv.WROpcode) bool {
	switch op {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE_WITH_IMM:
		return true
	}
	return false
}

// receive posts a receive of 64 bytes at 1024.
func (r *opTestbed) receive(id uint64) {
	if r.srq == nil {
		r.recv(r.b, id, r.bufB.sge(1024, 64))
		return
	}
	wr, sge := &offHeap[ibv.RecvWR](r.testbed, 1)[0], offHeap[ibv.SGE](r.testbed, 1)
	sge[0] = r.bufB.sge(1024, 64)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(&sge[0]), NumSGE: 1}
	require.NoError(r.t, verbs.PostSRQRecv(r.srq, wr, &offHeap[ibv.Ptr[ibv.RecvWR]](r.testbed, 1)[0]))
}

// request posts the i-th request of an operation. It transfers the value i to or from the peer's memory.
func (r *opTestbed) request(op ibv.WROpcode, i uint64) {
	x, addr, rkey := r.x, r.bufB.at(0), r.bufB.mr.RKey
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
		require.NoError(r.t, verbs.WRRDMAWrite(x, rkey, addr))
	case ibv.WR_RDMA_WRITE_WITH_IMM:
		require.NoError(r.t, verbs.WRRDMAWriteImm(x, rkey, addr, ibv.ToBE32(uint32(i))))
	case ibv.WR_RDMA_READ:
		require.NoError(r.t, verbs.WRRDMARead(x, rkey, addr))
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		require.NoError(r.t, verbs.WRAtomicCmpSwp(x, rkey, addr, i-1, i))
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		require.NoError(r.t, verbs.WRAtomicFetchAdd(x, rkey, addr, 1))
	case ibv.WR_FLUSH:
		require.NoError(r.t, verbs.WRFlush(x, rkey, addr, 8, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)))
		local = false
	case ibv.WR_ATOMIC_WRITE:
		value := offHeap[uint64](r.testbed, 1)
		value[0] = i
		require.NoError(r.t, verbs.WRAtomicWrite(x, rkey, addr, pointerTo(&value[0])))
		local = false
	}
	if r.kind == ibv.QPT_XRC_SEND {
		require.NoError(r.t, verbs.WRSetXRCSRQN(x, r.number))
	}
	if local {
		require.NoError(r.t, verbs.WRSetSGE(x, r.bufA.mr.LKey, r.bufA.at(0), 8))
	}
	require.NoError(r.t, verbs.WRComplete(x))
}

// boundWindow binds a new window of type 2 on the peer, and returns its key.
func (r *opTestbed) boundWindow() uint32 {
	if r.window == nil {
		w, err := verbs.AllocMW(r.pd[1], ibv.MW_TYPE_2)
		require.NoError(r.t, err)
		r.t.Cleanup(func() { require.NoError(r.t, verbs.DeallocMW(w)) })
		r.window = w
		r.key = w.RKey
	}
	r.key = verbs.IncRKey(r.key)
	wr := r.testbed.send(0, ibv.WR_BIND_MW)
	*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(r.window), RKey: r.key, BindInfo: ibv.MWBindInfo{
		MR: ibv.PtrTo(r.bufB.mr), Addr: r.bufB.at(0), Length: 64, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE,
	}}
	require.NoError(r.t, r.post(r.b, wr))
	require.Equal(r.t, ibv.WC_SUCCESS, r.poll(r.bind).Status)
	return r.key
}

// await polls until a completion arrives, while the virtual clock advances.
func (r *opTestbed) await(cq *ibv.CQ) ibv.WC {
	for range 10_000 {
		if wc, ok := r.tryPoll(cq); ok {
			return wc
		}
	}
	require.FailNow(r.t, "no completion")
	return ibv.WC{}
}

// TestOperationsWithFaults: requests that are lost, delayed or duplicated are executed once, in order, and complete
// once.
func TestOperationsWithFaults(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_XRC_SEND} {
		for op, flag := range testedOps {
			// XRC receivers have no windows
			if impl.Buildable(kind, flag) != 0 || kind == ibv.QPT_XRC_SEND && op == ibv.WR_SEND_WITH_INV {
				continue
			}
			for name, faults := range map[string]Faults{
				"drop": {Seed: 3, Drop: 0.25}, "duplicate": {Duplicate: 1}, "delay": {Delay: 1, Late: time.Millisecond},
				"all": {Seed: 5, Drop: 0.2, Duplicate: 0.5, Delay: 0.5, Late: 3 * time.Microsecond},
			} {
				t.Run(fmt.Sprint(kind, " ", op, " ", name), func(t *testing.T) {
					r := newOpTestbed(t, kind, op, Options{Faults: faults})
					for i := uint64(1); i <= 40; i++ {
						r.executeOnce(op, i)
					}
					_, more := r.tryPoll(r.send)
					assert.False(t, more)
					_, more = r.tryPoll(r.recvs)
					assert.False(t, more)
				})
			}
		}
	}
}

// executeOnce executes one request, and checks that its effects happened once.
func (r *opTestbed) executeOnce(op ibv.WROpcode, i uint64) {
	t := r.t
	word := func(b *buffer, at int) uint64 { return binary.NativeEndian.Uint64(b.bytes[at:]) }
	binary.NativeEndian.PutUint64(r.bufA.bytes, i)
	if op == ibv.WR_RDMA_READ {
		binary.NativeEndian.PutUint64(r.bufB.bytes, i)
		binary.NativeEndian.PutUint64(r.bufA.bytes, 0)
	}
	if consumesReceive(op) {
		r.receive(i)
	}
	r.request(op, i)
	wc := r.await(r.send)
	require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	require.Equal(t, i, wc.WRID)
	if consumesReceive(op) {
		wc := r.poll(r.recvs)
		require.Equal(t, ibv.WC_SUCCESS, wc.Status)
		require.Equal(t, i, wc.WRID)
	}
	switch op {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		require.Equal(t, i, word(r.bufB, 1024))
	case ibv.WR_FLUSH:
	case ibv.WR_RDMA_READ:
		require.Equal(t, i, word(r.bufA, 0))
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		require.Equal(t, i-1, word(r.bufA, 0), "value before the operation")
		require.Equal(t, i, word(r.bufB, 0))
	default:
		require.Equal(t, i, word(r.bufB, 0))
	}
}

// TestOperationsWithLinkDown: posted requests are retransmitted, and executed once when the link is up. If it stays
// down, or the peer's device is removed, the first request completes with RETRY_EXC_ERR and later ones are flushed.
func TestOperationsWithLinkDown(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_RC, ibv.QPT_XRC_SEND} {
		for op, flag := range testedOps {
			if impl.Buildable(kind, flag) != 0 || op == ibv.WR_SEND_WITH_INV {
				continue
			}
			t.Run(fmt.Sprint(kind, " ", op), func(t *testing.T) {
				for _, name := range []string{"soft0", "soft1"} {
					r := newOpTestbed(t, kind, op, Options{})
					r.executeOnce(op, 1)
					require.True(t, r.fabric.SetLink(name, false))
					r.receive(2)
					binary.NativeEndian.PutUint64(r.bufA.bytes, 2)
					r.request(op, 2)
					r.fabric.Advance(3 * time.Millisecond)
					_, done := r.tryPoll(r.recvs)
					require.False(t, done)
					require.True(t, r.fabric.SetLink(name, true))
					require.Equal(t, ibv.WC_SUCCESS, r.await(r.send).Status)
					_, done = r.tryPoll(r.recvs)
					require.Equal(t, consumesReceive(op), done)
					_, done = r.tryPoll(r.recvs)
					require.False(t, done)

					require.True(t, r.fabric.SetLink(name, false))
					r.request(op, 3)
					r.request(op, 4)
					require.Equal(t, ibv.WC_RETRY_EXC_ERR, r.await(r.send).Status)
					require.Equal(t, ibv.WC_WR_FLUSH_ERR, r.await(r.send).Status)
				}
				removed := newOpTestbed(t, kind, op, Options{})
				removed.request(op, 1)
				require.True(t, removed.fabric.RemoveDevice("soft1"))
				if !consumesReceive(op) {
					require.Equal(t, ibv.WC_SUCCESS, removed.await(removed.send).Status)
					removed.request(op, 2)
				}
				require.Equal(t, ibv.WC_RETRY_EXC_ERR, removed.await(removed.send).Status)

				if consumesReceive(op) {
					notReady := newOpTestbed(t, kind, op, Options{Faults: Faults{NotReady: true}})
					notReady.receive(1)
					notReady.request(op, 1)
					for range 1000 {
						_, done := notReady.tryPoll(notReady.send)
						require.False(t, done)
					}
					require.Greater(t, notReady.fabric.Counters().NotReady, uint64(1000))
					notReady.fabric.SetFaults(Faults{})
					require.Equal(t, ibv.WC_SUCCESS, notReady.await(notReady.send).Status)
					require.Equal(t, ibv.WC_SUCCESS, notReady.poll(notReady.recvs).Status)
				}
			})
		}
	}
}

// TestRNRNAKIsNotLoss: an RNR NAK, however late, does not count as a lost message.
func TestRNRNAKIsNotLoss(t *testing.T) {
	r := newOpTestbed(t, ibv.QPT_RC, ibv.WR_SEND, Options{})
	r.deliverAsync()
	r.request(ibv.WR_SEND, 1)
	for range 30 {
		_, done := r.tryPoll(r.send)
		require.False(t, done)
	}
	require.Greater(t, r.fabric.Counters().NotReady, uint64(10))
	r.receive(1)
	require.Equal(t, ibv.WC_SUCCESS, r.await(r.send).Status)
}
