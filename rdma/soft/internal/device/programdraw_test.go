// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"slices"

	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

func (p *program) draw(name string, from, to int) int {
	return rapid.IntRange(from, to).Draw(p.rt, name)
}

// rarely draws true with a probability of one in n. It uses a value in the middle of the range, because rapid prefers
// the ends.
func (p *program) rarely(name string) bool { return p.draw(name, 0, p.right) == p.right*2/3 }

// anyQP draws an existing queue pair, or returns nil.
func (p *program) anyQP() *refQP {
	var existing []*refQP
	for _, q := range p.world.qps {
		if !q.destroyed {
			existing = append(existing, q)
		}
	}
	if len(existing) == 0 {
		return nil
	}
	return existing[p.draw("queue pair", 0, len(existing)-1)]
}

// piece draws a range of memory.
func (p *program) piece(name string, most int) refPiece {
	piece := refPiece{offset: p.draw(name+" offset", 0, refSize-most), length: p.draw(name+" length", 0, most)}
	if p.rarely(name + " is wrong") {
		switch piece.of = rapid.SampledFrom([]refRegion{ofMain, ofFixed, ofForeign, ofNone}).Draw(p.rt,
			name+" of"); piece.of {
		case ofMain: // beyond the end
			piece.offset = refSize - piece.length/p.draw("beyond", 1, 2) + 1
		}
	}
	return piece
}

func (p *program) pieces(name string, most int) (all []refPiece) {
	for range p.draw(name+" pieces", 0, refSGEs) {
		all = append(all, p.piece(name, most/refSGEs))
	}
	return all
}

// sges returns pieces as scatter/gather entries of a device.
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
		return uint64(mem.AddressOf(&p.fixed[device].bytes[0])) + uint64(piece.offset)
	case ofForeign:
		return uint64(mem.AddressOf(&p.foreign[device].bytes[0])) + uint64(piece.offset)
	}
	return uint64(mem.AddressOf(&p.areas[device][refGuard])) + uint64(piece.offset)
}

// request draws a work request for the device and for the reference. Some can only be posted with builders.
func (p *program) request(q *refQP, newWithBuilders bool) (*ibv.SendWR, refSend) {
	ops := []ibv.WROpcode{ibv.WR_SEND, ibv.WR_SEND_WITH_IMM}
	if q.kind != ibv.QPT_UD {
		ops = append(ops, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM)
	}
	if p.windows[q] != nil {
		ops = append(ops, ibv.WR_BIND_MW, ibv.WR_LOCAL_INV)
	}
	if q.reliable() {
		ops = append(ops, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP,
			ibv.WR_ATOMIC_FETCH_AND_ADD)
	}
	if q.kind == ibv.QPT_RC {
		ops = append(ops, ibv.WR_SEND_WITH_INV)
		if newWithBuilders {
			ops = append(ops, ibv.WR_ATOMIC_WRITE, ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE, ibv.WR_FLUSH)
		}
	}
	p.id++
	s := refSend{id: p.id, op: rapid.SampledFrom(ops).Draw(p.rt, "opcode"), signalled: p.draw("signalled", 0, 2) > 0}
	// Most requests that use windows use a valid one.
	wrong := s.op == ibv.WR_BIND_MW && q.key != 0 || s.op == ibv.WR_LOCAL_INV && q.key == 0 ||
		s.op == ibv.WR_SEND_WITH_INV && q.peer.key == 0
	if wrong && !p.rarely("wrong window") {
		s.op = ibv.WR_SEND
	}
	switch s.op {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		s.local = []refPiece{p.piece("local", 8)}
		if s.local[0].length = 8; s.local[0].of == ofMain && s.local[0].offset > refSize-8 {
			s.local[0].offset = refSize - 4
		}
	case ibv.WR_BIND_MW, ibv.WR_LOCAL_INV, ibv.WR_FLUSH:
	case ibv.WR_ATOMIC_WRITE:
		s.inline = binary.NativeEndian.AppendUint64(nil, p.id<<40|p.id)
	default:
		s.local = p.pieces("local", 60)
	}
	wr := p.testbed.send(s.id, s.op, p.sges(q.device, s.local)...)
	if !s.signalled {
		wr.SendFlags = 0
	}
	if p.lossy && q.reliable() { // wait for read data before a later request is sent
		wr.SendFlags |= ibv.SEND_FENCE
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
	if q.kind == ibv.QPT_XRC_SEND {
		p.drawSRQ(&s, wr)
	}
	switch s.op {
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP,
		ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_WRITE, ibv.WR_FLUSH:
		p.drawTarget(q, &s, wr)
	case ibv.WR_SEND_WITH_INV:
		s.key = p.last[q.peer]
		*wr.InvalidateRKey() = s.key
	case ibv.WR_LOCAL_INV:
		s.key = p.last[q]
		*wr.InvalidateRKey() = s.key
	case ibv.WR_BIND_MW:
		s.key = verbs.IncRKey(p.last[q])
		p.last[q] = s.key
		s.window = [2]int{p.draw("reach", 0, refSize-64), p.draw("window length", 1, 64)}
		*wr.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(p.windows[q]), RKey: s.key, BindInfo: ibv.MWBindInfo{
			MR: ibv.PtrTo(p.main[q.device]), Addr: p.address(q.device, refPiece{offset: s.window[0]}),
			Length:        uint64(s.window[1]),
			MWAccessFlags: ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ,
		}}
	}
	return wr, s
}

// number returns the number of a queue pair, which may be destroyed.
func (p *program) number(q *refQP) uint32 { return p.qps[q].QPNum }

// anotherWindow returns a queue pair of the same device whose window is bound, or nil.
func (p *program) anotherWindow(q *refQP) *refQP {
	for _, other := range p.world.qps {
		if other != q && other.device == q.device && other.key != 0 && !other.destroyed {
			return other
		}
	}
	return nil
}

// drawTarget draws the remote range of a one-sided request.
func (p *program) drawTarget(q *refQP, s *refSend, wr *ibv.SendWR) {
	length := 0
	for _, piece := range s.local {
		length += piece.length
	}
	switch s.op {
	case ibv.WR_ATOMIC_WRITE:
		length = 8
	case ibv.WR_FLUSH:
		length, s.whole = p.draw("flushed", 0, 64), p.draw("entire region", 0, 3) == 0
	}
	s.remote = p.piece("remote", 64)
	s.remote.length = length
	key := p.main[q.peer.device].RKey
	switch s.remote.of {
	case ofMain:
		if s.remote.offset > refSize-64 { // beyond the end, or at the end
			s.remote.offset = refSize - length/p.draw("beyond", 1, 2) + 1
		} else if other := p.anotherWindow(q.peer); other != nil && p.rarely("another's window") {
			s.remote.of, s.key, s.remote.offset = ofWindow, other.key, other.window[0]
			key = s.key
		} else if q.peer.key != 0 && p.draw("use window", 0, 1) == 0 || p.rarely("use window") {
			s.remote.of, s.key = ofWindow, p.last[q.peer]
			key = s.key
			if !p.rarely("anywhere") && length < q.peer.window[1] {
				s.remote.offset = q.peer.window[0] + p.draw("offset in window", 0, q.peer.window[1]-length)
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
	if refWords[s.op] && !p.rarely("crooked") {
		s.remote.offset &^= 7
		to = p.address(q.peer.device, s.remote)
	}
	if s.op != ibv.WR_ATOMIC_CMP_AND_SWP && s.op != ibv.WR_ATOMIC_FETCH_AND_ADD {
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: to, RKey: key}
		return
	}
	s.operand, s.swap = uint64(p.draw("operand", 0, 1<<30))<<20, p.id
	if main := p.world.devices[q.peer.device].main; s.remote.offset+8 <= refSize &&
		p.draw("compare with current value", 0, 1) == 0 {
		s.operand = binary.NativeEndian.Uint64(main[s.remote.offset:])
	}
	*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: to, RKey: key, CompareAdd: s.operand, Swap: s.swap}
}
