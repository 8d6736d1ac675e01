// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
)

const (
	refSize  = 256 // bytes of a region
	refGuard = 128 // guard bytes around the region
	refDepth = 6
	refSGEs  = 3

	programTimeout  = 14 // 67 ms: longer than the sum of a program's waits for receives
	programNotReady = 4  // 40 µs: limits the RNR retries while the program advances the clock
)

// episode runs its cleanups at the end of one random program, not at the end of the test.
type episode struct {
	testing.TB
	undo []func()
}

func (e *episode) Cleanup(f func()) { e.undo = append(e.undo, f) }

func (e *episode) end() {
	for _, f := range slices.Backward(e.undo) {
		f()
	}
}

// program is a random sequence of verbs, executed on the device and on the reference.
type program struct {
	*testbed
	rt              *rapid.T
	world           *refWorld
	areas           [2][]byte // guard, main, guard
	main            [2]*ibv.MR
	fixed           [2]*buffer
	foreign         [2]*buffer
	send            [2]*ibv.CQ
	recv            [2]*ibv.CQ
	shared          *ibv.SRQ // of device 1
	sharedQ         *refQueue
	xrc             []xrcQueue // of device 1, in one domain
	newWithBuilders map[*refQP]*ibv.QPEx
	ah              [2]*ibv.AH // to the other device
	qps             map[*refQP]*ibv.QP
	windows         map[*refQP]*ibv.MW
	last            map[*refQP]uint32 // the last key that a bind requested
	id              uint64
	right           int // one in this many choices is invalid
	// With lossy packets, which take time, every action is completed before the next one.
	lossy bool
}

func newProgram(t testing.TB, rt *rapid.T, right int, o Options) *program {
	o.Virtual = true
	p := &program{right: right, lossy: o.losses != nil, testbed: newTestbed(t, o), rt: rt,
		qps: map[*refQP]*ibv.QP{}, windows: map[*refQP]*ibv.MW{}, last: map[*refQP]uint32{},
		newWithBuilders: map[*refQP]*ibv.QPEx{}}
	p.rnrTimer = programNotReady
	if p.lossy {
		p.rnrTimer = 20 // 10 ms, much less than the time until all requests time out
	}
	p.world = &refWorld{headers: p.header}
	for d := range 2 {
		p.areas[d] = offHeap[byte](p.testbed, refSize+2*refGuard)
		p.fixed[d] = p.buffer(d, refSize, 0)
		other, err := verbs.AllocPD(p.context[d])
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(other)) })
		own := p.pd[d]
		p.pd[d] = other
		p.foreign[d] = p.buffer(d, refSize, allAccess)
		p.pd[d] = own
		for _, b := range [][]byte{p.areas[d], p.fixed[d].bytes, p.foreign[d].bytes} {
			for i := range b {
				b[i] = byte(31*i + 7*d + len(b))
			}
		}
		p.world.devices[d] = refDevice{slices.Clone(p.areas[d][refGuard:][:refSize]), slices.Clone(p.fixed[d].bytes),
			slices.Clone(p.foreign[d].bytes)}
		mr, err := verbs.RegMR(own, pointerTo(&p.areas[d][refGuard]), refSize, allAccess|ibv.ACCESS_MW_BIND)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeregMR(mr)) })
		p.main[d] = mr
		p.send[d], p.recv[d] = p.cq(d, 256), p.cq(d, 256)
		av := p.av(1 - d)
		p.ah[d], err = verbs.CreateAH(own, &av)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DestroyAH(p.ah[d])) })
	}
	srq, err := verbs.CreateSRQ(p.pd[1], &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: refDepth, MaxSGE: refSGEs}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroySRQ(srq)) })
	p.shared, p.sharedQ = srq, &refQueue{shared: true}
	p.connected(ibv.QPT_RC, false)
	p.connected(ibv.QPT_RC, true)
	p.connected(ibv.QPT_RC, true)
	p.connected(ibv.QPT_UC, false)
	p.makeXRC()
	if o.Faults == (Faults{}) && !p.lossy { // the hop limit of a datagram is unspecified
		p.make(ibv.QPT_UD, 0, false)
		p.make(ibv.QPT_UD, 1, false)
	}
	for q, qp := range p.qps {
		if q.kind == ibv.QPT_UD {
			p.connect(qp, 0, 0)
		}
	}
	return p
}

// make creates a queue pair and a memory window.
func (p *program) make(kind ibv.QPType, device int, shares bool) *refQP {
	q := &refQP{world: p.world, kind: kind, device: device, state: ibv.QPS_RTS, recvs: &refQueue{}}
	init := &ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(p.send[device]), RecvCQ: ibv.PtrTo(p.recv[device]),
		Cap: ibv.QPCap{
			MaxSendWR: refDepth, MaxRecvWR: refDepth, MaxSendSGE: refSGEs, MaxRecvSGE: refSGEs, MaxInlineData: 64,
		}}
	if shares {
		init.SRQ, q.recvs = ibv.PtrTo(p.shared), p.sharedQ
	}
	qp, err := verbs.CreateQPEx(p.context[device], &ibv.QPInitAttrEx{
		QPType: kind, SendCQ: init.SendCQ, RecvCQ: init.RecvCQ, SRQ: init.SRQ, Cap: init.Cap,
		PD:       ibv.PtrTo(p.pd[device]),
		CompMask: ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS, SendOpsFlags: p.operations(kind),
	})
	require.NoError(p.t, err)
	p.made(q, qp)
	if kind != ibv.QPT_UD {
		p.windows[q], err = verbs.AllocMW(p.pd[device], ibv.MW_TYPE_2)
		require.NoError(p.t, err)
		p.last[q] = p.windows[q].RKey
		p.t.Cleanup(func() { require.NoError(p.t, verbs.DeallocMW(p.windows[q])) })
	}
	return q
}

// made adds a queue pair, which exists until the program destroys it or ends.
func (p *program) made(q *refQP, qp *ibv.QP) {
	p.t.Cleanup(func() {
		if !q.destroyed {
			require.NoError(p.t, verbs.DestroyQP(qp))
		}
	})
	p.qps[q] = qp
	p.world.qps = append(p.world.qps, q)
	if p.operations(q.kind) != 0 {
		x, err := verbs.QPToQPEx(qp)
		require.NoError(p.t, err)
		p.newWithBuilders[q] = x
	}
}

// connected creates two connected queue pairs. The second may use a shared receive queue.
func (p *program) connected(kind ibv.QPType, shares bool) {
	a, b := p.make(kind, 0, false), p.make(kind, 1, shares)
	p.pair(a, b)
}

// pair connects two queue pairs.
func (p *program) pair(a, b *refQP) {
	a.peer, b.peer = b, a
	for q, peer := range map[*refQP]*refQP{a: b, b: a} {
		p.toRTR(p.qps[q], peer.device, p.qps[peer].QPNum)
		if q.kind == ibv.QPT_XRC_RECV {
			continue
		}
		attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: programTimeout, RetryCnt: 1, RNRRetry: 7,
			MaxRdAtomic: 4}
		if p.lossy { // the same total time, with more retries
			attr.Timeout, attr.RetryCnt = programTimeout-2, 7
		}
		mask := ibv.QP_STATE | ibv.QP_SQ_PSN
		if q.reliable() {
			mask |= ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC
		}
		require.NoError(p.t, verbs.ModifyQP(p.qps[q], attr, mask))
	}
}

// header returns the bytes that the device wrote before the datagram that a queue pair receives next. The reference
// copies them.
func (p *program) header(q *refQP, pieces []refPiece) (header []byte) {
	for _, piece := range pieces {
		header = append(header, p.areas[q.device][refGuard+piece.offset:][:piece.length]...)
	}
	return slices.Clone(header[:engine.GRHSize])
}
