package soft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

const (
	refSize  = 256 // bytes of a region
	refGuard = 128 // bytes around it, which are nobody's
	refDepth = 6
	refSGEs  = 3
)

// episode is a test that ends before the test that it is part of.
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

// program is a run of random verbs, on the device and on the reference.
type program struct {
	*rig
	rt      *rapid.T
	world   *refWorld
	areas   [2][]byte // guard, main, guard
	main    [2]*ibv.MR
	fixed   [2]*buffer
	foreign [2]*buffer
	send    [2]*ibv.CQ
	recv    [2]*ibv.CQ
	shared  *ibv.SRQ // of device 1
	sharedQ *refQueue
	ah      [2]*ibv.AH // to the other device
	qps     map[*refQP]*ibv.QP
	windows map[*refQP]*ibv.MW
	last    map[*refQP]uint32 // key that was asked for last
	id      uint64
	right   int // how much more is right than wrong
}

func newProgram(t testing.TB, rt *rapid.T, right int) *program {
	p := &program{right: right, rig: newRig(t, Options{Virtual: true}), rt: rt, qps: map[*refQP]*ibv.QP{}, windows: map[*refQP]*ibv.MW{}, last: map[*refQP]uint32{}}
	p.world = &refWorld{headers: p.header}
	for d := range 2 {
		p.areas[d] = outside[byte](p.rig, refSize+2*refGuard)
		p.fixed[d] = p.buffer(d, refSize, 0)
		other, err := verbs.AllocPD(p.context[d])
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.DeallocPD(other)) })
		own := p.pd[d]
		p.pd[d] = other
		p.foreign[d] = p.buffer(d, refSize, everything)
		p.pd[d] = own
		for _, b := range [][]byte{p.areas[d], p.fixed[d].bytes, p.foreign[d].bytes} {
			for i := range b {
				b[i] = byte(31*i + 7*d + len(b))
			}
		}
		p.world.devices[d] = refDevice{slices.Clone(p.areas[d][refGuard:][:refSize]), slices.Clone(p.fixed[d].bytes), slices.Clone(p.foreign[d].bytes)}
		mr, err := verbs.RegMR(own, addressOf(&p.areas[d][refGuard]), refSize, everything|ibv.ACCESS_MW_BIND)
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
	p.make(ibv.QPT_UD, 0, false)
	p.make(ibv.QPT_UD, 1, false)
	for q, qp := range p.qps {
		if q.kind == ibv.QPT_UD {
			p.connect(qp, 0, 0)
		}
	}
	return p
}

// make creates a queue pair, with a window.
func (p *program) make(kind ibv.QPType, device int, shares bool) *refQP {
	q := &refQP{world: p.world, kind: kind, device: device, state: ibv.QPS_RTS, recvs: &refQueue{}}
	init := &ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(p.send[device]), RecvCQ: ibv.PtrTo(p.recv[device]), Cap: ibv.QPCap{
		MaxSendWR: refDepth, MaxRecvWR: refDepth, MaxSendSGE: refSGEs, MaxRecvSGE: refSGEs, MaxInlineData: 64,
	}}
	if shares {
		init.SRQ, q.recvs = ibv.PtrTo(p.shared), p.sharedQ
	}
	qp, err := verbs.CreateQP(p.pd[device], init)
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		if !q.gone {
			require.NoError(p.t, verbs.DestroyQP(qp))
		}
	})
	if kind != ibv.QPT_UD {
		p.windows[q], err = verbs.AllocMW(p.pd[device], ibv.MW_TYPE_2)
		require.NoError(p.t, err)
		p.last[q] = p.windows[q].RKey
		p.t.Cleanup(func() { require.NoError(p.t, verbs.DeallocMW(p.windows[q])) })
	}
	p.qps[q] = qp
	p.world.qps = append(p.world.qps, q)
	return q
}

// connected creates two queue pairs that are each other's peers; the second one may share its receives.
func (p *program) connected(kind ibv.QPType, shares bool) {
	a, b := p.make(kind, 0, false), p.make(kind, 1, shares)
	a.peer, b.peer = b, a
	for q, peer := range map[*refQP]*refQP{a: b, b: a} {
		p.toRTR(p.qps[q], peer.device, p.qps[peer].QPNum)
		attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, Timeout: 14, RetryCnt: 1, RNRRetry: 7, MaxRdAtomic: 4}
		mask := ibv.QP_STATE | ibv.QP_SQ_PSN
		if kind == ibv.QPT_RC {
			mask |= ibv.QP_TIMEOUT | ibv.QP_RETRY_CNT | ibv.QP_RNR_RETRY | ibv.QP_MAX_QP_RD_ATOMIC
		}
		require.NoError(p.t, verbs.ModifyQP(p.qps[q], attr, mask))
	}
}

// header is what the device wrote in front of the datagram that a queue pair receives next: the reference takes it as it is.
func (p *program) header(q *refQP, pieces []refPiece) (header []byte) {
	for _, piece := range pieces {
		header = append(header, p.areas[q.device][refGuard+piece.offset:][:piece.length]...)
	}
	return slices.Clone(header[:grhSize])
}

func (p *program) draw(what string, from, to int) int {
	return rapid.IntRange(from, to).Draw(p.rt, what)
}

// rarely is a number that rapid has no liking for.
func (p *program) rarely(what string) bool { return p.draw(what, 0, p.right) == p.right*2/3 }

// someone is a queue pair that is there, or nil.
func (p *program) someone() *refQP {
	var there []*refQP
	for _, q := range p.world.qps {
		if !q.gone {
			there = append(there, q)
		}
	}
	if len(there) == 0 {
		return nil
	}
	return there[p.draw("queue pair", 0, len(there)-1)]
}

// piece draws a piece of memory.
func (p *program) piece(what string, most int) refPiece {
	piece := refPiece{offset: p.draw(what+" offset", 0, refSize-most), length: p.draw(what+" length", 0, most)}
	if p.rarely(what + " is wrong") {
		switch piece.of = rapid.SampledFrom([]refRegion{ofMain, ofFixed, ofForeign, ofNone}).Draw(p.rt, what+" of"); piece.of {
		case ofMain: // beyond the end
			piece.offset = refSize - piece.length/p.draw("beyond", 1, 2) + 1
		}
	}
	return piece
}

func (p *program) pieces(what string, most int) (all []refPiece) {
	for range p.draw(what+" pieces", 0, refSGEs) {
		all = append(all, p.piece(what, most/refSGEs))
	}
	return all
}

// sges are pieces as a device knows them.
func (p *program) sges(device int, pieces []refPiece) []ibv.SGE {
	var all []ibv.SGE
	for _, piece := range pieces {
		s := ibv.SGE{Addr: p.address(device, piece), Length: uint32(piece.length), LKey: p.main[device].LKey}
		switch piece.of {
		case ofFixed:
			s.LKey = p.fixed[device].mr.LKey
		case ofForeign:
			s.LKey = p.foreign[device].mr.LKey
		case ofNone:
			s.LKey ^= 0x55
		}
		all = append(all, s)
	}
	return all
}

func (p *program) address(device int, piece refPiece) uint64 {
	switch piece.of {
	case ofFixed:
		return uint64(addressOf(&p.fixed[device].bytes[0])) + uint64(piece.offset)
	case ofForeign:
		return uint64(addressOf(&p.foreign[device].bytes[0])) + uint64(piece.offset)
	}
	return uint64(addressOf(&p.areas[device][refGuard])) + uint64(piece.offset)
}

// request draws a work request of a queue pair, in both forms.
func (p *program) request(q *refQP) (*ibv.SendWR, refSend) {
	ops := []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM}
	if q.kind != ibv.QPT_UD {
		ops = append(ops, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_BIND_MW, ibv.WR_LOCAL_INV)
	}
	if q.kind == ibv.QPT_RC {
		ops = append(ops, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_SEND_WITH_INV)
	}
	p.id++
	s := refSend{id: p.id, op: rapid.SampledFrom(ops).Draw(p.rt, "opcode"), signalled: p.draw("signalled", 0, 2) > 0}
	// Most requests about windows are about the right ones.
	wrong := s.op == ibv.WR_BIND_MW && q.key != 0 || s.op == ibv.WR_LOCAL_INV && q.key == 0 || s.op == ibv.WR_SEND_WITH_INV && q.peer.key == 0
	if wrong && !p.rarely("a wrong window") {
		s.op = ibv.WR_SEND
	}
	switch s.op {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		s.local = []refPiece{p.piece("local", 8)}
		if s.local[0].length = 8; s.local[0].of == ofMain && s.local[0].offset > refSize-8 {
			s.local[0].offset = refSize - 4
		}
	case ibv.WR_BIND_MW, ibv.WR_LOCAL_INV:
	default:
		s.local = p.pieces("local", 60)
	}
	wr := p.rig.send(s.id, s.op, p.sges(q.device, s.local)...)
	if !s.signalled {
		wr.SendFlags = 0
	}
	switch s.op {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		beyond := slices.ContainsFunc(s.local, func(piece refPiece) bool { return piece.offset+piece.length > refSize })
		if !beyond && p.draw("inline", 0, 3) == 0 {
			wr.SendFlags |= ibv.SEND_INLINE
			s.inline = p.world.gather(q.device, s.local)
		}
	}
	if s.op == ibv.WR_SEND_WITH_IMM || s.op == ibv.WR_RDMA_WRITE_WITH_IMM {
		s.imm = uint32(p.id) * 0x01010101
		*wr.ImmData() = ibv.ToBE32(s.imm)
	}
	if q.kind == ibv.QPT_UD {
		to := p.world.qps[p.draw("to", 0, len(p.world.qps)-1)]
		s.to, s.wrongQKey = to, p.rarely("wrong Q_Key") || to.device == q.device
		ud := ibv.SendUD{AH: ibv.PtrTo(p.ah[q.device]), RemoteQPN: p.number(to), RemoteQKey: testQKey}
		if s.wrongQKey {
			ud.RemoteQKey++
		}
		*wr.WR.UD() = ud
		return wr, s
	}
	switch s.op {
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		p.aim(q, &s, wr)
	case ibv.WR_SEND_WITH_INV:
		s.key = p.last[q.peer]
		*wr.InvalidateRKey() = s.key
	case ibv.WR_LOCAL_INV:
		s.key = p.last[q]
		*wr.InvalidateRKey() = s.key
	case ibv.WR_BIND_MW:
		s.key = verbs.IncRKey(p.last[q])
		p.last[q] = s.key
		s.reach = [2]int{p.draw("reach", 0, refSize-64), p.draw("reach length", 1, 64)}
		*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(p.windows[q]), RKey: s.key, BindInfo: ibv.MWBindInfo{
			MR: ibv.PtrTo(p.main[q.device]), Addr: p.address(q.device, refPiece{offset: s.reach[0]}), Length: uint64(s.reach[1]),
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ,
		}}
	}
	return wr, s
}

// number is a queue pair's, also of one that is gone.
func (p *program) number(q *refQP) uint32 { return p.qps[q].QPNum }

// another is a queue pair of the same device with a window that is bound, or nil.
func (p *program) another(q *refQP) *refQP {
	for _, other := range p.world.qps {
		if other != q && other.device == q.device && other.key != 0 && !other.gone {
			return other
		}
	}
	return nil
}

// aim draws where a one-sided request goes.
func (p *program) aim(q *refQP, s *refSend, wr *ibv.SendWR) {
	length := 0
	for _, piece := range s.local {
		length += piece.length
	}
	s.remote = p.piece("remote", 64)
	s.remote.length = length
	key := p.main[q.peer.device].RKey
	switch s.remote.of {
	case ofMain:
		if s.remote.offset > refSize-64 { // beyond the end, or its very end
			s.remote.offset = refSize - length/p.draw("beyond", 1, 2) + 1
		} else if other := p.another(q.peer); other != nil && p.rarely("another's window") {
			s.remote.of, s.key, s.remote.offset = ofWindow, other.key, other.reach[0]
			key = s.key
		} else if q.peer.key != 0 && p.draw("by window", 0, 1) == 0 || p.rarely("by window") {
			s.remote.of, s.key = ofWindow, p.last[q.peer]
			key = s.key
			if !p.rarely("anywhere") && length < q.peer.reach[1] {
				s.remote.offset = q.peer.reach[0] + p.draw("within reach", 0, q.peer.reach[1]-length)
			}
		}
	case ofFixed:
		key = p.fixed[q.peer.device].mr.RKey
	case ofForeign:
		key = p.foreign[q.peer.device].mr.RKey
	case ofNone:
		key ^= 0x55
	}
	to := p.address(q.peer.device, s.remote)
	if s.op != ibv.WR_ATOMIC_CMP_AND_SWP && s.op != ibv.WR_ATOMIC_FETCH_AND_ADD {
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: to, RKey: key}
		return
	}
	if !p.rarely("crooked") {
		s.remote.offset &^= 7
		to = p.address(q.peer.device, s.remote)
	}
	s.operand, s.swap = uint64(p.draw("operand", 0, 1<<30))<<20, p.id
	if main := p.world.devices[q.peer.device].main; s.remote.offset+8 <= refSize && p.draw("what is there", 0, 1) == 0 {
		s.operand = binary.NativeEndian.Uint64(main[s.remote.offset:])
	}
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: to, RKey: key, CompareAdd: s.operand, Swap: s.swap}
}

// post posts a list of requests, of which one may be malformed.
func (p *program) post() {
	q, n := p.someone(), p.draw("requests", 1, 3)
	if q == nil || q.peer != nil && q.peer.recvs.shared && len(q.peer.recvs.recvs) < n {
		return // what waits for shared receives takes them in an order that nothing promises
	}
	malformed := -1
	if p.rarely("malformed") {
		malformed = p.draw("which", 0, n-1)
	}
	var first, last *ibv.SendWR
	var wrs []*ibv.SendWR
	taken, want := 0, error(nil)
	for i := range n {
		key := p.last[q]
		wr, s := p.request(q)
		if i == malformed {
			switch p.draw("how it is malformed", 0, 2) {
			case 0:
				wr.Opcode = ibv.WR_ATOMIC_WRITE
			case 1:
				wr.NumSGE = refSGEs + 1
				wr.SGList = ibv.PtrTo(&outside[ibv.SGE](p.rig, refSGEs+1)[0])
			case 2:
				wr.SendFlags |= 1 << 20
			}
		}
		switch {
		case want != nil:
		case q.posted-q.retired >= refDepth:
			want = enomem
		case i == malformed:
			want = einval
		default:
			s.position = q.posted
			q.posted++
			taken++
			q.sends = append(q.sends, s)
		}
		if want != nil {
			p.last[q] = key
		}
		if wrs = append(wrs, wr); first == nil {
			first = wr
		} else {
			last.Next = ibv.PtrTo(wr)
		}
		last = wr
	}
	bad := &outside[ibv.Ptr[ibv.SendWR]](p.rig, 1)[0]
	err := verbs.PostSend(p.qps[q], first, bad)
	if want != nil {
		require.ErrorIs(p.rt, err, want)
		require.Equal(p.rt, ibv.PtrTo(wrs[taken]), *bad, "the first that was not posted")
	} else {
		require.NoError(p.rt, err)
	}
	p.world.run()
}

// receive posts a receive.
func (p *program) receive() {
	q := p.someone()
	if q == nil {
		return
	}
	pieces := append(p.pieces("receive", 120), refPiece{offset: p.draw("offset", 0, refSize-60), length: 60})
	if pieces = pieces[max(0, len(pieces)-refSGEs):]; p.rarely("short") {
		pieces = pieces[:len(pieces)-1]
	}
	if q.kind != ibv.QPT_RC || q.recvs.shared { // where there is room enough, and no piece twice
		pieces = []refPiece{{offset: p.draw("offset", 0, refSize-110), length: 110}}
	}
	p.id++
	recv := refRecv{p.id, pieces}
	var err error
	if q.recvs.shared {
		err = p.recvShared(p.id, p.sges(q.device, pieces))
	} else {
		err = p.tryRecv(p.qps[q], p.id, p.sges(q.device, pieces)...)
	}
	if q.recvs.posted-q.recvs.retired == refDepth {
		require.ErrorIs(p.rt, err, enomem)
		return
	}
	require.NoError(p.rt, err)
	q.recvs.posted++
	q.recvs.recvs = append(q.recvs.recvs, recv)
	if q.state == ibv.QPS_ERR {
		q.flush()
	}
	p.world.run()
}

func (p *program) recvShared(id uint64, sges []ibv.SGE) error {
	wr, bad := &outside[ibv.RecvWR](p.rig, 1)[0], &outside[ibv.Ptr[ibv.RecvWR]](p.rig, 1)[0]
	copied := outside[ibv.SGE](p.rig, len(sges))
	copy(copied, sges)
	*wr = ibv.RecvWR{WRID: id, SGList: ibv.PtrTo(unsafe.SliceData(copied)), NumSGE: int32(len(sges))}
	return verbs.PostSRQRecv(p.shared, wr, bad)
}

// touch writes to memory, as programs do; what was posted inline stays as it was.
func (p *program) touch() {
	d, at := p.draw("device", 0, 1), p.draw("offset", 0, refSize-16)
	for i := range 16 {
		v := byte(p.id) ^ byte(i)<<3
		p.areas[d][refGuard+at+i], p.world.devices[d].main[at+i] = v, v
	}
}

// modify takes a queue pair to ERR, or from SQE to RTS.
func (p *program) modify() {
	q := p.someone()
	switch {
	case q == nil:
	case q.state == ibv.QPS_SQE && p.draw("recover", 0, 3) > 0:
		require.NoError(p.rt, verbs.ModifyQP(p.qps[q], &ibv.QPAttr{QPState: ibv.QPS_RTS}, ibv.QP_STATE))
		q.state = ibv.QPS_RTS
	case p.rarely("to ERR"):
		require.NoError(p.rt, verbs.ModifyQP(p.qps[q], &ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		q.breakDown()
		p.world.run()
	}
}

// destroy destroys a queue pair. What it had not done is forgotten; what had completed stays to be polled.
func (p *program) destroy() {
	q := p.someone()
	if q == nil || !p.rarely("destroy") {
		return
	}
	err := verbs.DestroyQP(p.qps[q])
	if q.key != 0 {
		require.ErrorIs(p.rt, err, ebusy, "a window is bound to it")
		return
	}
	require.NoError(p.rt, err)
	q.gone, q.sends = true, nil
	p.world.run()
}

// done is the list that a completion of a queue has to be the first one of.
func (p *program) done(wc *ibv.WC, sends bool) (*refQP, *[]refDone) {
	for _, q := range p.world.qps {
		if p.number(q) == wc.QPNum {
			if sends {
				return q, &q.sent
			}
			return q, &q.received
		}
	}
	p.rt.Fatalf("a completion of queue pair %#x, which there never was", wc.QPNum)
	return nil, nil
}

// take holds a completion against the reference.
func (p *program) take(wc ibv.WC, sends bool) {
	q, list := p.done(&wc, sends)
	what := fmt.Sprintf("%v of device %d: WR %d, sends %v", q.kind, q.device, wc.WRID, sends)
	require.NotEmpty(p.rt, *list, "%s: a completion with %v, and the reference has none", what, wc.Status)
	want := (*list)[0]
	*list = (*list)[1:]
	require.Equal(p.rt, want.id, wc.WRID, what)
	require.Equal(p.rt, want.status, wc.Status, what)
	if sends {
		q.retired = want.position + 1
	} else {
		q.recvs.retired++
	}
	if want.status != ibv.WC_SUCCESS {
		return
	}
	require.Equal(p.rt, want.opcode, wc.Opcode, what)
	if !sends {
		require.EqualValues(p.rt, want.length, wc.ByteLen, what)
		require.Equal(p.rt, want.imm != 0, wc.WCFlags&ibv.WC_WITH_IMM != 0, what)
		if want.imm != 0 {
			require.Equal(p.rt, want.imm, wc.ImmData().Host(), what)
		}
		require.Equal(p.rt, want.ended != 0, wc.WCFlags&ibv.WC_WITH_INV != 0, what)
		if want.ended != 0 {
			require.Equal(p.rt, want.ended, *wc.InvalidatedRKey(), what)
		}
	}
}

// waiting is how many completions the reference has for a completion queue.
func (p *program) waiting(device int, sends bool) (n int) {
	for _, q := range p.world.qps {
		switch {
		case q.device != device:
		case sends:
			n += len(q.sent)
		default:
			n += len(q.received)
		}
	}
	return n
}

func (p *program) queue(device int, sends bool) *ibv.CQ {
	if sends {
		return p.send[device]
	}
	return p.recv[device]
}

// poll takes a few completions that have come, so that no time passes.
func (p *program) poll() {
	device, sends := p.draw("device", 0, 1), p.draw("sends", 0, 1) == 0
	if most := p.waiting(device, sends); most > 0 {
		for range p.draw("completions", 1, most) {
			p.take(p.rig.poll(p.queue(device, sends)), sends)
		}
	}
}

// settle lets everything happen, and takes all that comes.
func (p *program) settle() {
	p.world.wait()
	for vain := 0; vain < 40; vain++ {
		for device := range 2 {
			for _, sends := range []bool{true, false} {
				if wc, ok := p.polled(p.queue(device, sends)); ok {
					p.take(wc, sends)
					vain = 0
				}
			}
		}
	}
	for device := range 2 {
		require.Zero(p.rt, p.waiting(device, true), "sends of device %d that do not complete", device)
		require.Zero(p.rt, p.waiting(device, false), "receives of device %d that do not complete", device)
	}
}

// memory compares it, guards and all.
func (p *program) memory() {
	for d := range 2 {
		of := &p.world.devices[d]
		for i := range refGuard {
			before, after := p.areas[d][i], p.areas[d][refGuard+refSize+i]
			require.Equal(p.rt, [2]byte{byte(31*i + 7*d + len(p.areas[d])), byte(31*(refGuard+refSize+i) + 7*d + len(p.areas[d]))}, [2]byte{before, after}, "memory that no key lets in")
		}
		for _, pair := range [][2][]byte{{of.main, p.areas[d][refGuard:][:refSize]}, {of.fixed, p.fixed[d].bytes}, {of.foreign, p.foreign[d].bytes}} {
			if !bytes.Equal(pair[0], pair[1]) {
				for i := range pair[0] {
					require.Equal(p.rt, pair[0][i], pair[1][i], "device %d, byte %d", d, i)
				}
			}
		}
	}
}

// TestPrograms runs random programs on queue pairs of all types that share completion queues and receives: every completion is the next
// one of its queue that the reference has, nothing is missing, and memory is the reference's after each step.
func TestPrograms(t *testing.T) {
	for _, right := range []int{6, 20, 200} {
		t.Run(fmt.Sprintf("one in %d is wrong", right), func(t *testing.T) { programs(t, right) })
	}
}

func programs(t *testing.T, right int) {
	rapid.Check(t, func(rt *rapid.T) {
		own := &episode{TB: t}
		defer own.end()
		p := newProgram(own, rt, right)
		actions := map[string]func(*rapid.T){"": func(*rapid.T) { p.memory() }}
		for what, action := range map[string]struct {
			often int
			do    func()
		}{"post": {6, p.post}, "receive": {6, p.receive}, "poll": {2, p.poll}, "settle": {1, p.settle}, "touch": {1, p.touch}, "modify": {1, p.modify}, "destroy": {1, p.destroy}} {
			for i := range action.often {
				actions[fmt.Sprint(what, " ", i)] = func(*rapid.T) { action.do() }
			}
		}
		rt.Repeat(actions)
		p.settle()
		p.memory()
	})
}
