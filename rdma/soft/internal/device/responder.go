// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// inStep says whether a message of a reliable connection is the next one of the sender's, or the last one again. A
// queue pair that has heard of no sender since its first number was set takes up with one whose next message has that
// number.
func (q *qp) inStep(m *message.Request) bool {
	switch {
	case q.heard:
		return m.Life == q.peerLife && (m.PSN == q.expects || m.PSN == q.last)
	case m.PSN != q.expects:
		return false
	}
	q.heard, q.peerLife, q.last = true, m.Life, noPSN
	return true
}

// isRepeated says whether a message was carried out already: the answer to it was lost, or it came twice.
func (q *qp) isRepeated(m *message.Request) bool {
	return m.PSN != q.expects && q.heard && m.Life == q.peerLife && m.PSN == q.last
}

// repeat answers such a message as the first time. Only a read is carried out again.
func (q *qp) repeat(m *message.Request) message.Syndrome {
	if !q.on.careful { // the answer to it was begun already
		q.count(counters.Repeats)
	}
	if m.Opcode == ibv.WR_RDMA_READ {
		return q.readBy(m)
	}
	return message.Ack
}

// carryOut does what a message asks for. A reliable connection hears what went wrong; a message that an unreliable one
// may not deliver is dropped.
func (q *qp) carryOut(m *message.Request) message.Syndrome {
	s := message.InvalidRequest
	switch m.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		s = q.receive(m)
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		s = q.writtenBy(m, m.Length)
	case ibv.WR_RDMA_READ:
		s = q.readBy(m)
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		s = q.atomic(m)
	case ibv.WR_FLUSH:
		s = q.flush(m)
	case ibv.WR_ATOMIC_WRITE:
		s = q.atomicWrite(m)
	}
	if m.Transport == ibv.QPT_UC {
		s = message.Ack
	}
	if s == message.Ack && !q.established {
		q.establish()
	}
	return s
}

// establish notes that a message came.
func (q *qp) establish() {
	if q.established {
		return
	}
	q.established = true
	if q.state == ibv.QPS_RTR {
		q.tell(ibv.EVENT_COMM_EST)
	}
}

// remote is where a range is that a message is about, by a key.
func (q *qp) remote(m *message.Request, length uint64, access ibv.AccessFlags) (segment, bool) {
	k := q.device.keys.get(m.RKey)
	if k == nil || !q.takesKeysOf(k.pd) || k.bound != nil && k.bound != q {
		return segment{}, false
	}
	s, ok := k.locate(m.Remote, length, access)
	if q.on.careful && ok {
		ok = mem.Touch(s, access&(ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_ATOMIC) != 0)
	}
	return s, ok
}

// takesKeysOf says whether a peer may use keys of a protection domain; a receiving XRC queue pair has none, and takes
// those of its domain's shared receive queues.
func (q *qp) takesKeysOf(p *pd) bool {
	if q.owner == nil {
		return q.domain.pds[p] > 0
	}
	return q.protects == p
}

// allows says whether the queue pair lets its peer do something.
func (q *qp) allows(access ibv.AccessFlags) bool { return q.attr.QPAccessFlags&access == access }

// writtenBy is a write, or the last part of one that has so many bytes as a whole.
func (q *qp) writtenBy(m *message.Request, whole uint64) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_WRITE) {
		return q.refuse(m, message.InvalidRequest)
	}
	var to segment
	if m.Length > 0 {
		var ok bool
		if to, ok = q.remote(m, m.Length, ibv.ACCESS_REMOTE_WRITE); !ok {
			return q.refuse(m, message.RemoteAccess)
		}
	}
	if m.Opcode == ibv.WR_RDMA_WRITE {
		scatterTo(to, m.Payload)
		return message.Ack
	}
	recvs, s, answer := q.receiver(m)
	if recvs == nil {
		return answer
	}
	scatterTo(to, m.Payload)
	got, _ := recvs.first()
	recvs.take()
	if s != nil {
		s.took()
	}
	c := q.completes(s)
	e := c.next()
	e.wc = ibv.WC{WRID: got.id, Opcode: ibv.WC_RECV_RDMA_WITH_IMM, ByteLen: uint32(whole), QPNum: q.number,
		SrcQP: m.SourceQP, WCFlags: ibv.WC_WITH_IMM}
	*e.wc.ImmData() = m.Imm
	e.sender, e.receiver, e.position = nil, recvs, recvs.taken
	c.publish(e, m.Solicited)
	q.count(counters.Receives)
	return message.Ack
}

func scatterTo(to segment, from []segment) {
	for _, s := range from {
		mem.Move(to.Base, s.Base, s.Length)
		to.Base += s.Length
	}
}

// readBy is a read.
func (q *qp) readBy(m *message.Request) message.Syndrome {
	s := q.reads(m)
	if s != message.Ack {
		return q.refuse(m, s)
	}
	return s
}

// reads finds what a read is of, or says why it may not be read.
func (q *qp) reads(m *message.Request) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_READ) || q.attr.MaxDestRdAtomic == 0 {
		return message.InvalidRequest
	}
	if m.Length == 0 {
		return message.Ack
	}
	from, ok := q.remote(m, m.Length, ibv.ACCESS_REMOTE_READ)
	if !ok {
		return message.RemoteAccess
	}
	q.fabric().read[0] = from
	return message.Ack
}

// atomic is an atomic. What it finds is kept, for the answer and for one more when that is lost.
func (q *qp) atomic(m *message.Request) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_ATOMIC) || q.attr.MaxDestRdAtomic == 0 || m.Remote%atomicSize != 0 {
		return q.refuse(m, message.InvalidRequest)
	}
	at, ok := q.remote(m, atomicSize, ibv.ACCESS_REMOTE_ATOMIC)
	if !ok {
		return q.refuse(m, message.RemoteAccess)
	}
	q.saved = mem.Load64(at.Base)
	switch {
	case m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		mem.Store64(at.Base, q.saved+m.Operand)
	case q.saved == m.Operand:
		mem.Store64(at.Base, m.Swap)
	}
	return message.Ack
}

// flush makes sure that what was written before is where it is seen, which it always is here.
func (q *qp) flush(m *message.Request) message.Syndrome {
	placement, level := ibv.PlacementType(m.Placement), ibv.SelectivityLevel(m.Level)
	access := ibv.AccessFlags(0)
	if placement&ibv.FLUSH_GLOBAL != 0 {
		access |= ibv.ACCESS_FLUSH_GLOBAL
	}
	if placement&ibv.FLUSH_PERSISTENT != 0 {
		access |= ibv.ACCESS_FLUSH_PERSISTENT
	}
	if !q.allows(access) {
		return q.refuse(m, message.InvalidRequest)
	}
	k := q.device.keys.get(m.RKey)
	ok := k != nil && level == ibv.FLUSH_MR && q.takesKeysOf(k.pd) && (k.bound == nil || k.bound == q) &&
		k.access&access == access
	if level != ibv.FLUSH_MR {
		_, ok = q.remote(m, m.Length, access)
	}
	if !ok {
		return q.refuse(m, message.RemoteAccess)
	}
	return message.Ack
}

// atomicWrite is a write of 8 bytes that nobody sees half of.
func (q *qp) atomicWrite(m *message.Request) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_WRITE) || m.Remote%atomicSize != 0 {
		return q.refuse(m, message.InvalidRequest)
	}
	at, ok := q.remote(m, atomicSize, ibv.ACCESS_REMOTE_WRITE)
	if !ok {
		return q.refuse(m, message.RemoteAccess)
	}
	mem.Store64(at.Base, m.Operand)
	return message.Ack
}

// receive takes a message into a receive.
func (q *qp) receive(m *message.Request) message.Syndrome {
	if q.srq != nil && q.srq.tags != nil {
		return q.tagged(m)
	}
	recvs, s, answer := q.receiver(m)
	if recvs == nil {
		return answer
	}
	got, sges := recvs.first()
	status := ibv.WC_REM_INV_REQ_ERR
	if m.Opcode != ibv.WR_SEND_WITH_INV || q.boundWindow(uint32(m.Imm)) != nil {
		status = q.place(recvs.pd, sges, m.Payload, m.Length)
	}
	recvs.take()
	if s != nil {
		s.took()
	}
	c := q.completes(s)
	e := c.next()
	e.wc = ibv.WC{WRID: got.id, Status: status, Opcode: ibv.WC_RECV, ByteLen: uint32(m.Length), QPNum: q.number,
		SrcQP: m.SourceQP}
	e.sender, e.receiver, e.position = nil, recvs, recvs.taken
	q.received(m, status, c, e)
	return q.answerOf(status)
}
