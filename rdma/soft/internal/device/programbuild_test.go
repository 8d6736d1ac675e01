// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// xrcQueue is a shared receive queue of an XRC domain.
type xrcQueue struct {
	srq    *ibv.SRQ
	number uint32
	queue  *refQueue
}

// overXRC creates two shared receive queues in one XRC domain, and two pairs of queue pairs that can send to both.
func (p *program) makeXRC() {
	domain, err := p.openXRCD(1, -1, impl.OCreate)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, verbs.CloseXRCD(domain)) })
	for range 2 {
		srq, err := verbs.CreateSRQEx(p.context[1], &ibv.SRQInitAttrEx{
			Attr: ibv.SRQAttr{MaxWR: refDepth, MaxSGE: refSGEs}, SRQType: ibv.SRQT_XRC, PD: ibv.PtrTo(p.pd[1]),
			XRCD: ibv.PtrTo(domain), CQ: ibv.PtrTo(p.recv[1]),
			CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ,
		})
		require.NoError(p.t, err)
		p.t.Cleanup(func() { require.NoError(p.t, verbs.DestroySRQ(srq)) })
		number := new(uint32)
		require.NoError(p.t, verbs.GetSRQNum(srq, number))
		p.xrc = append(p.xrc, xrcQueue{srq, *number, &refQueue{shared: true}})
	}
	for range 2 {
		to, err := verbs.CreateQPEx(p.context[1],
			&ibv.QPInitAttrEx{QPType: ibv.QPT_XRC_RECV, XRCD: ibv.PtrTo(domain), CompMask: ibv.QP_INIT_ATTR_XRCD})
		require.NoError(p.t, err)
		q := &refQP{world: p.world, kind: ibv.QPT_XRC_RECV, device: 1, state: ibv.QPS_RTS,
			recvs: &refQueue{shared: true}}
		p.made(q, to)
		p.pair(p.make(ibv.QPT_XRC_SEND, 0, false), q)
	}
}

// drawSRQ draws the shared receive queue of a request.
func (p *program) drawSRQ(s *refSend, wr *ibv.SendWR) {
	to := p.xrc[p.draw("shared queue", 0, len(p.xrc)-1)]
	s.queue, s.number = to.queue, to.number
	if p.rarely("nonexistent queue") {
		// the number of a basic queue is its handle
		s.queue, s.number = nil, []uint32{to.number ^ 0x10000, p.shared.Handle}[p.draw("no queue or a wrong one", 0, 1)]
	}
	wr.QPType.XRC().RemoteSRQN = s.number
}

// mayWait reports whether the queue pair cannot post, or might wait for shared receives, whose order between queue
// pairs is undefined.
func (p *program) mayWait(q *refQP, n int) bool {
	switch {
	case q.kind == ibv.QPT_XRC_RECV:
		return true
	case q.kind == ibv.QPT_XRC_SEND:
		for _, to := range p.xrc {
			if len(to.queue.recvs) < n {
				return true
			}
		}
		return false
	}
	return q.peer != nil && q.peer.recvs.shared && len(q.peer.recvs.recvs) < n
}

// operations returns the operations that a queue pair of a type is created with.
func (p *program) operations(kind ibv.QPType) ibv.QPCreateSendOpsFlags {
	const (
		messages = ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM
		memory   = ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM | ibv.QP_EX_WITH_RDMA_READ |
			ibv.QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD
		windows = ibv.QP_EX_WITH_BIND_MW | ibv.QP_EX_WITH_LOCAL_INV | ibv.QP_EX_WITH_SEND_WITH_INV
	)
	switch kind {
	case ibv.QPT_RC:
		return messages | memory | windows | ibv.QP_EX_WITH_FLUSH | ibv.QP_EX_WITH_ATOMIC_WRITE
	case ibv.QPT_XRC_SEND:
		return messages | memory | windows&^ibv.QP_EX_WITH_SEND_WITH_INV
	case ibv.QPT_UC, ibv.QPT_UD:
		return messages
	}
	return 0
}

// build posts requests with builders. If they do not fit, none is posted.
func (p *program) build() {
	q, n := p.anyQP(), p.draw("requests", 1, 3)
	if q == nil || !q.reliable() || p.mayWait(q, n) {
		return
	}
	x, key := p.newWithBuilders[q], p.last[q]
	require.NoError(p.rt, verbs.WRStart(x))
	var sends []refSend
	for i := range n {
		wr, s := p.request(q, true)
		s.position = q.posted + i
		sends = append(sends, s)
		x.WRID, x.WRFlags = wr.WRID, wr.SendFlags&^ibv.SEND_INLINE
		require.NoError(p.rt, p.builder(x, wr, &s))
		require.NoError(p.rt, p.data(x, wr, &s))
		if q.kind == ibv.QPT_XRC_SEND {
			require.NoError(p.rt, verbs.WRSetXRCSRQN(x, s.number))
		}
	}
	if err := verbs.WRComplete(x); q.posted-q.retired+n > refDepth {
		require.ErrorIs(p.rt, err, syscall.ENOMEM)
		p.last[q] = key
	} else {
		require.NoError(p.rt, err)
		q.posted += n
		q.sends = append(q.sends, sends...)
	}
	p.run()
}

// builder appends a request to the region.
func (p *program) builder(x *ibv.QPEx, wr *ibv.SendWR, s *refSend) error {
	to, atomic := wr.WR.RDMA(), wr.WR.Atomic()
	switch s.op {
	case ibv.WR_SEND:
		return verbs.WRSend(x)
	case ibv.WR_SEND_WITH_IMM:
		return verbs.WRSendImm(x, *wr.ImmData())
	case ibv.WR_SEND_WITH_INV:
		return verbs.WRSendInv(x, s.key)
	case ibv.WR_RDMA_WRITE:
		return verbs.WRRDMAWrite(x, to.RKey, to.RemoteAddr)
	case ibv.WR_RDMA_WRITE_WITH_IMM:
		return verbs.WRRDMAWriteImm(x, to.RKey, to.RemoteAddr, *wr.ImmData())
	case ibv.WR_RDMA_READ:
		return verbs.WRRDMARead(x, to.RKey, to.RemoteAddr)
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		return verbs.WRAtomicCmpSwp(x, atomic.RKey, atomic.RemoteAddr, s.operand, s.swap)
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		return verbs.WRAtomicFetchAdd(x, atomic.RKey, atomic.RemoteAddr, s.operand)
	case ibv.WR_ATOMIC_WRITE:
		return verbs.WRAtomicWrite(x, to.RKey, to.RemoteAddr, pointerTo(&s.inline[0]))
	case ibv.WR_FLUSH:
		level := ibv.FLUSH_RANGE
		if s.whole {
			level = ibv.FLUSH_MR
		}
		return verbs.WRFlush(x, to.RKey, to.RemoteAddr, uint64(s.remote.length), uint8(ibv.FLUSH_GLOBAL), uint8(level))
	case ibv.WR_BIND_MW:
		return verbs.WRBindMW(x, wr.BindMW().MW.Deref(), wr.BindMW().RKey, &wr.BindMW().BindInfo)
	}
	return verbs.WRLocalInv(x, s.key)
}

// data appends the data of the request, if it has any.
func (p *program) data(x *ibv.QPEx, wr *ibv.SendWR, s *refSend) error {
	switch s.op {
	case ibv.WR_ATOMIC_WRITE, ibv.WR_FLUSH, ibv.WR_BIND_MW, ibv.WR_LOCAL_INV:
		return nil
	}
	if s.inline == nil {
		return verbs.WRSetSGEList(x, uint64(wr.NumSGE), wr.SGList.Deref())
	}
	pieces := offHeap[ibv.DataBuf](p.testbed, max(1, int(wr.NumSGE)))
	for i, sge := range unsafe.Slice(wr.SGList.Deref(), int(wr.NumSGE)) {
		pieces[i] = ibv.DataBuf{Addr: uintptr(sge.Addr), Length: uint64(sge.Length)}
	}
	return verbs.WRSetInlineDataList(x, uint64(wr.NumSGE), &pieces[0])
}
