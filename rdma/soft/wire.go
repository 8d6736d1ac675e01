package soft

import (
	"github.com/goverbs/goverbs/generated/ibv"
)

// execute carries a request out, the receiving side included.
func (q *qp) execute(r *request) verdict {
	switch r.opcode {
	case ibv.WR_LOCAL_INV:
		return q.invalidate(r)
	case ibv.WR_BIND_MW:
		return q.bindWindow(r)
	}
	f := q.fabric()
	local, length, status := q.gather(r)
	if status != ibv.WC_SUCCESS {
		return failed(status)
	}
	if q.kind == ibv.QPT_UD {
		return q.datagram(r, local, length)
	}
	if f.faults.chance(f.faults.Delay) && !q.stall.late {
		q.stall.late = true
		return verdict{outcome: late}
	}
	return q.exchange(r, local, length)
}

// exchange brings a message to the peer, and the peer's answer back. On the way, either may be lost; unreliable senders do not notice.
func (q *qp) exchange(r *request, local []segment, length uint64) verdict {
	if q.stall.spent {
		return failed(ibv.WC_RETRY_EXC_ERR)
	}
	f, peer, reliable := q.fabric(), q.route(), q.kind != ibv.QPT_UC
	loses := peer == nil || f.faults.chance(f.faults.Drop)
	v := verdict{outcome: lost}
	if peer != nil && (!loses || reliable && f.faults.chance(0.5)) {
		v = peer.take(q, r, local, length)
		if v == succeeded && f.faults.chance(f.faults.Duplicate) {
			peer.take(q, r, local, length) // the sender expects no second answer
		}
	}
	if loses {
		f.counters.Lost++
		v = verdict{outcome: lost}
	}
	if !reliable {
		v = succeeded
	}
	if v.outcome == finished {
		q.message++
	}
	if v == succeeded && (r.opcode == ibv.WR_ATOMIC_CMP_AND_SWP || r.opcode == ibv.WR_ATOMIC_FETCH_AND_ADD) {
		scatter(local, []segment{{addressOf(&peer.saved), atomicSize}})
	}
	return v
}

// take is a message that comes in. One that was carried out already, whose answer was lost or that came twice, is not carried out again
// but for reads: it is answered as the first time.
func (peer *qp) take(q *qp, r *request, local []segment, length uint64) verdict {
	if peer.expects == q.message+1 {
		q.fabric().counters.Duplicates++
		if r.opcode == ibv.WR_RDMA_READ {
			return peer.read(q, r, local, length)
		}
		return succeeded
	}
	v := q.deliver(peer, r, local, length)
	if v.outcome == finished {
		peer.expects = q.message + 1
	}
	return v
}

// gather looks up the memory of the sender's side.
func (q *qp) gather(r *request) (local []segment, length uint64, status ibv.WCStatus) {
	f := q.fabric()
	if r.inline >= 0 {
		f.from[0] = segment{q.inlineAt(q.next), uint64(r.inline)}
		return f.from[:1], uint64(r.inline), ibv.WC_SUCCESS
	}
	access := ibv.AccessFlags(0)
	switch r.opcode {
	case ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		access = ibv.ACCESS_LOCAL_WRITE
	}
	n := 0
	for _, s := range q.entries(q.next)[:r.sges] {
		if s.Length == 0 {
			continue
		}
		segment, ok := q.device.keys.local(q.protects(), s, access)
		if !ok {
			return nil, 0, ibv.WC_LOC_PROT_ERR
		}
		f.from[n] = segment
		n++
		length += uint64(s.Length)
	}
	switch {
	case access != 0 && q.attr.MaxRdAtomic == 0:
		return nil, 0, ibv.WC_LOC_QP_OP_ERR
	case length > maxMessage, access != 0 && r.opcode != ibv.WR_RDMA_READ && length != atomicSize:
		return nil, 0, ibv.WC_LOC_LEN_ERR
	}
	return f.from[:n], length, ibv.WC_SUCCESS
}

// local is where an entry of the owner's own is: of a region of the domain.
func (k *keys) local(p *pd, s ibv.SGE, access ibv.AccessFlags) (segment, bool) {
	m := k.get(s.LKey)
	if m == nil || m.pd != p || m.window != nil {
		return segment{}, false
	}
	return m.locate(s.Addr, uint64(s.Length), access)
}

// route is the queue pair that a connected one reaches, or nil where nobody answers: it does not exist, or does not expect this one.
func (q *qp) route() *qp {
	peer, _ := q.fabric().numbers.get(q.attr.DestQPNum).(*qp)
	if peer == nil || peer.device != q.peer || peer.attr.DestQPNum != q.number || peer.peer != q.device || !peer.receives() {
		return nil
	}
	want := q.kind
	if want == ibv.QPT_XRC_SEND {
		want = ibv.QPT_XRC_RECV
	}
	if peer.kind != want || q.device.down || peer.device.down || !q.inPartition(peer) {
		return nil
	}
	if inStep := peer.expects == q.message || peer.expects == q.message+1; !inStep && q.kind != ibv.QPT_UC { // unreliable connections take up with any message
		const psn = 1<<24 - 1
		if peer.expects != 0 || q.attr.SQPSN&psn != peer.attr.RQPSN&psn { // reset alone, a sender is out of step
			return nil
		}
		peer.expects = q.message
	}
	return peer
}

// receives says whether messages come in, in this state.
func (q *qp) receives() bool { return q.state >= ibv.QPS_RTR && q.state <= ibv.QPS_SQE }

// inPartition says whether two queue pairs have keys of one partition, and one of them as a full member.
func (q *qp) inPartition(peer *qp) bool {
	const full = 0x8000
	a, b := q.device.pkeys[q.attr.PKeyIndex], peer.device.pkeys[peer.attr.PKeyIndex]
	if (a^b)&^full == 0 && (a|b)&full != 0 {
		return true
	}
	peer.device.badPKeys++
	return false
}

// deliver carries a request out at its peer. A reliable connection hears what went wrong there; a message that an unreliable one may not
// deliver is dropped.
func (q *qp) deliver(peer *qp, r *request, local []segment, length uint64) verdict {
	v := succeeded
	switch r.opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		v = peer.receive(q, r, local, length)
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		v = peer.written(q, r, local, length)
	case ibv.WR_RDMA_READ:
		v = peer.read(q, r, local, length)
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		v = peer.atomic(q, r)
	case ibv.WR_FLUSH:
		v = peer.flushed(q, r)
	case ibv.WR_ATOMIC_WRITE:
		v = peer.atomicWrite(q, r)
	default:
		return failed(ibv.WC_LOC_QP_OP_ERR)
	}
	if v == succeeded && !peer.established {
		peer.established = true
		if peer.state == ibv.QPS_RTR {
			peer.tell(ibv.EVENT_COMM_EST)
		}
	}
	if q.kind == ibv.QPT_UC {
		return succeeded
	}
	return v
}

// refuse is the answer to a request that may not be carried out: a reliable connection breaks on both sides, and an event tells the side
// that answers, where no completion does.
func (peer *qp) refuse(q *qp, status ibv.WCStatus) verdict {
	if q.kind == ibv.QPT_UC {
		return succeeded
	}
	event := ibv.EVENT_QP_REQ_ERR
	if status == ibv.WC_REM_ACCESS_ERR {
		event = ibv.EVENT_QP_ACCESS_ERR
	}
	peer.tell(event)
	peer.setState(ibv.QPS_ERR)
	return failed(status)
}

// remote is where a range is that a peer of the queue pair's wants to use, by a key.
func (q *qp) remote(r *request, length uint64, access ibv.AccessFlags) (segment, bool) {
	m := q.device.keys.get(r.rkey)
	if m == nil || !q.takesKeysOf(m.pd) || m.bound != nil && m.bound != q {
		return segment{}, false
	}
	return m.locate(r.remote, length, access)
}

// takesKeysOf says whether a peer may use keys of a protection domain; a receiving XRC queue pair has none, and takes those of its domain's
// shared receive queues.
func (q *qp) takesKeysOf(p *pd) bool {
	if q.owner == nil {
		return q.domain.pds[p] > 0
	}
	return q.protects() == p
}

// allows says whether the queue pair lets its peer do something.
func (q *qp) allows(access ibv.AccessFlags) bool { return q.attr.QPAccessFlags&access == access }

// written is a write of the peer's.
func (peer *qp) written(q *qp, r *request, local []segment, length uint64) verdict {
	if !peer.allows(ibv.ACCESS_REMOTE_WRITE) {
		return peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
	}
	var to segment
	if length > 0 {
		var ok bool
		if to, ok = peer.remote(r, length, ibv.ACCESS_REMOTE_WRITE); !ok {
			return peer.refuse(q, ibv.WC_REM_ACCESS_ERR)
		}
	}
	if r.opcode == ibv.WR_RDMA_WRITE {
		scatterTo(to, local)
		return succeeded
	}
	recvs, s, v := peer.receiver(q, r)
	if recvs == nil {
		return v
	}
	scatterTo(to, local)
	got, _ := recvs.take()
	if s != nil {
		s.took()
	}
	c := peer.completes(s)
	e := c.next()
	e.wc = ibv.WC{WRID: got.id, Opcode: ibv.WC_RECV_RDMA_WITH_IMM, ByteLen: uint32(length), QPNum: peer.number, SrcQP: q.number, WCFlags: ibv.WC_WITH_IMM}
	*e.wc.ImmData() = ibv.BE32(r.imm)
	e.sender, e.receiver, e.position = nil, recvs, recvs.taken
	c.publish(e, r.flags&ibv.SEND_SOLICITED != 0)
	return succeeded
}

func scatterTo(to segment, from []segment) {
	for _, s := range from {
		move(to.base, s.base, s.length)
		to.base += s.length
	}
}

// read is a read of the peer's.
func (peer *qp) read(q *qp, r *request, local []segment, length uint64) verdict {
	if !peer.allows(ibv.ACCESS_REMOTE_READ) || peer.attr.MaxDestRdAtomic == 0 {
		return peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
	}
	if length == 0 {
		return succeeded
	}
	from, ok := peer.remote(r, length, ibv.ACCESS_REMOTE_READ)
	if !ok {
		return peer.refuse(q, ibv.WC_REM_ACCESS_ERR)
	}
	for _, s := range local {
		move(s.base, from.base, s.length)
		from.base += s.length
	}
	return succeeded
}

// atomicSize is what atomics are of, in bytes.
const atomicSize = 8

// atomic is an atomic of the peer's. What it finds is kept, for the answer and for one more when that is lost.
func (peer *qp) atomic(q *qp, r *request) verdict {
	if !peer.allows(ibv.ACCESS_REMOTE_ATOMIC) || peer.attr.MaxDestRdAtomic == 0 || r.remote%atomicSize != 0 {
		return peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
	}
	at, ok := peer.remote(r, atomicSize, ibv.ACCESS_REMOTE_ATOMIC)
	if !ok {
		return peer.refuse(q, ibv.WC_REM_ACCESS_ERR)
	}
	peer.saved = load64(at.base)
	switch {
	case r.opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		store64(at.base, peer.saved+r.operand)
	case peer.saved == r.operand:
		store64(at.base, r.swap)
	}
	return succeeded
}

// flushed makes sure that what was written before is where it is seen, which it always is here.
func (peer *qp) flushed(q *qp, r *request) verdict {
	placement, level := ibv.PlacementType(r.swap), ibv.SelectivityLevel(r.swap>>32)
	access := ibv.AccessFlags(0)
	if placement&ibv.FLUSH_GLOBAL != 0 {
		access |= ibv.ACCESS_FLUSH_GLOBAL
	}
	if placement&ibv.FLUSH_PERSISTENT != 0 {
		access |= ibv.ACCESS_FLUSH_PERSISTENT
	}
	if !peer.allows(access) {
		return peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
	}
	length := r.operand
	if level == ibv.FLUSH_MR {
		m := peer.device.keys.get(r.rkey)
		if m == nil {
			return peer.refuse(q, ibv.WC_REM_ACCESS_ERR)
		}
		r.remote, length = m.start, m.length
	}
	if _, ok := peer.remote(r, length, access); !ok {
		return peer.refuse(q, ibv.WC_REM_ACCESS_ERR)
	}
	return succeeded
}

// atomicWrite is a write of 8 bytes that nobody sees half of.
func (peer *qp) atomicWrite(q *qp, r *request) verdict {
	if !peer.allows(ibv.ACCESS_REMOTE_WRITE) || r.remote%atomicSize != 0 {
		return peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
	}
	at, ok := peer.remote(r, atomicSize, ibv.ACCESS_REMOTE_WRITE)
	if !ok {
		return peer.refuse(q, ibv.WC_REM_ACCESS_ERR)
	}
	store64(at.base, r.operand)
	return succeeded
}
