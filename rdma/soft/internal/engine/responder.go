// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// isFromPeer reports whether a message of a reliable connection in memory comes from the sender to which the queue pair
// is connected. It accepts a sender whose message has the first sequence number, if no message has arrived since that
// was set.
func (q *QP) isFromPeer(m *message.Request) bool {
	if q.heard {
		return m.Life == q.peerLife
	}
	if m.PSN != q.Receiver.Expects {
		return false
	}
	q.heard, q.peerLife = true, m.Life
	return true
}

// arrives handles a request from a peer in memory, and returns the answer.
func (q *QP) arrives(m *message.Request) *message.Answer {
	r := &q.Receiver
	if m.PSN != r.Expects {
		if q.reliable {
			return q.receiveOutOfOrder(m)
		}
		if q.heard && m.Life == q.peerLife && transport.Next(m.PSN, m.Packets) == r.Expects { // a duplicate
			q.count(counters.Duplicates)
			return nil
		}
		r.Expects = m.PSN
	}
	if s := q.execute(m); s != message.Ack {
		if s == message.NotReady {
			r.Refused()
		}
		return q.answer(m, message.Plain, s, m.PSN)
	}
	r.Took(m.Packets, true)
	if !q.reliable {
		q.heard, q.peerLife = true, m.Life
		return nil
	}
	a := q.answer(m, message.Plain, message.Ack, m.PSN)
	switch m.Opcode {
	case ibv.WR_RDMA_READ:
		if a.Kind = message.ReadData; m.Length > 0 {
			a.Data = q.On.read[:]
		}
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		a.Kind = message.AtomicData
		r.Keep(m.PSN, a.Original, max(int(q.Attr.MaxDestRdAtomic), 1))
	}
	return a
}

// arrivesAsPackets handles a request, or a part of one, that travelled as packets. It sends the answer at once, while
// faults of its memory are still recovered, and returns nil.
func (q *QP) arrivesAsPackets(m *message.Request) *message.Answer {
	r, psn, s := &q.Receiver, m.PSN, message.Ack
	switch {
	case !q.reliable:
		q.receiveUnreliable(m)
		return nil
	case psn != r.Expects:
		return q.receiveOutOfOrder(m)
	case q.isPartial(m):
		s = q.takePart(m)
	default:
		s = q.execute(m)
	}
	switch {
	case s == message.NotReady:
		r.Refused()
	case s != message.Ack:
		q.broke, q.brokeAt = s, psn
	case expectsResponse(m.Opcode):
		return q.respond(m)
	default:
		if r.Took(m.Packets, !m.More); !m.AckReq {
			return nil
		}
		psn = transport.Next(r.Expects, PSNMask) // one answer acknowledges all earlier requests
	}
	return q.reply(m, message.Plain, s, psn)
}

// respond sends the response to an executed read, atomic or flush as packets.
func (q *QP) respond(m *message.Request) *message.Answer {
	r := &q.Receiver
	if m.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP || m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
		r.Took(1, true)
		r.Keep(m.PSN, q.back.Original, max(int(q.Attr.MaxDestRdAtomic), 1))
		return q.reply(m, message.AtomicData, message.Ack, m.PSN)
	}
	r.Count++ // which the answer contains
	a := q.replyData(m)
	r.Count--
	r.Took(q.answerPackets(m), true)
	return a
}

// receiveOutOfOrder handles a request that is not the next one.
func (q *QP) receiveOutOfOrder(m *message.Request) *message.Answer {
	switch q.Receiver.Arrives(m.PSN) {
	case transport.Repeated:
		return q.receiveDuplicate(m)
	case transport.Gap:
		q.count(counters.Gaps)
		return q.reply(m, message.Plain, message.OutOfOrder, q.Receiver.Expects)
	}
	q.count(counters.BehindGaps)
	return nil
}

// receiveDuplicate answers a repeated request. Only a read is executed again.
func (q *QP) receiveDuplicate(m *message.Request) *message.Answer {
	if !q.On.Careful { // otherwise it is a retry of this function
		q.count(counters.Duplicates)
	}
	switch {
	case m.Opcode == ibv.WR_RDMA_READ:
		if transport.Distance(transport.Next(m.PSN, q.answerPackets(m)), q.Receiver.Expects) > 0 {
			return nil
		}
		switch s := q.locateRead(m); {
		case s == message.Ack:
			return q.replyData(m)
		case q.sender == nil: // the memory is unmapped; with packets, a forged one must not break the connection
			return q.reply(m, message.Plain, q.refuse(m, s), m.PSN)
		}
	case m.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP || m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		if found, ok := q.Receiver.Found(m.PSN); ok {
			q.back.Original = found
			return q.reply(m, message.AtomicData, message.Ack, m.PSN)
		}
	case expectsResponse(m.Opcode):
		return q.replyData(m)
	case q.sender == nil:
		return q.reply(m, message.Plain, message.Ack, m.PSN)
	case m.AckReq:
		return q.reply(m, message.Plain, message.Ack, transport.Next(q.Receiver.Expects, PSNMask))
	}
	return nil
}

// rejectAgain repeats the answer to a packet that broke the connection, in case the answer was lost.
func (q *QP) rejectAgain(m *message.Request) *message.Answer {
	if q.sender != nil && q.State == ibv.QPS_ERR && q.broke != message.Ack && m.PSN == q.brokeAt &&
		m.Transport == q.ExpectsOf {
		return q.reply(m, message.Plain, q.broke, m.PSN)
	}
	return nil
}

// receiveUnreliable handles an unanswered request, or a part of one. A message of which a part is missing is dropped.
func (q *QP) receiveUnreliable(m *message.Request) {
	p, r := &q.Part, &q.Receiver
	if m.Continues && (!p.on || m.PSN != r.Expects) {
		if q.count(counters.BehindGaps); p.on {
			q.On.Lost++
		}
		p.on = false
		return
	}
	if !m.Continues {
		p.on = false
	}
	if !q.isPartial(m) {
		q.execute(m)
	} else if q.takePart(m) != message.Ack {
		p.on = false
	}
	r.Expects = transport.Next(m.PSN, m.Packets)
}

// isPartial reports whether a message is a part, or follows one.
func (q *QP) isPartial(m *message.Request) bool {
	return m.Continues || m.More || q.Part.on || q.Part.Held
}

// takePart executes a part of a request, or a request that follows one.
func (q *QP) takePart(m *message.Request) message.Syndrome {
	p := &q.Part
	writes := m.Opcode == ibv.WR_RDMA_WRITE || m.Opcode == ibv.WR_RDMA_WRITE_WITH_IMM
	if !m.Continues && !m.More && writes && !p.on {
		return q.execute(m)
	}
	if m.Continues != p.on || m.Continues && writes != p.writes || !q.fitsPart(m, writes) {
		return q.refuse(m, message.InvalidRequest)
	}
	var s message.Syndrome
	switch {
	case writes:
		s = q.writePart(m)
	case q.SRQ != nil && q.SRQ.Tags != nil:
		s = q.collect(m)
	default:
		s = q.receivePart(m)
	}
	if s != message.Ack {
		return s
	}
	p.on, p.writes = m.More, writes
	if m.More {
		p.done += sum(m.Payload)
		return s
	}
	p.done = 0
	q.establish()
	return s
}

// fitsPart reports whether a part has only full packets, unless it is the last one, and the message does not exceed the
// maximum.
func (q *QP) fitsPart(m *message.Request, writes bool) bool {
	p, n := &q.Part, sum(m.Payload)
	done := uint64(0)
	if m.Continues {
		done = p.done
	}
	switch {
	case n == 0 && (m.More || m.Continues), m.More && n&(128<<q.Attr.PathMTU-1) != 0, done+n > MaxMessage:
		return false
	case !writes:
		return true
	case !m.Continues:
		return m.Length > n && m.Length <= MaxMessage
	case m.More:
		return done+n < p.length
	}
	return done+n == p.length
}

// writePart executes a part of a write. Keys are looked up for each part, because a region may be deregistered in
// between.
func (q *QP) writePart(m *message.Request) message.Syndrome {
	p := &q.Part
	if !m.Continues {
		if !q.allows(ibv.ACCESS_REMOTE_WRITE) {
			return q.refuse(m, message.InvalidRequest)
		}
		if _, ok := q.remote(m, m.Length, ibv.ACCESS_REMOTE_WRITE); !ok {
			return q.refuse(m, message.RemoteAccess)
		}
		p.remote, p.rkey, p.length, p.done = m.Remote, m.RKey, m.Length, 0
	}
	m.Remote, m.RKey = p.remote+p.done, p.rkey
	if m.More || m.Opcode == ibv.WR_RDMA_WRITE {
		to, ok := q.remote(m, sum(m.Payload), ibv.ACCESS_REMOTE_WRITE)
		if !ok {
			return q.refuse(m, message.RemoteAccess)
		}
		scatterTo(to, m.Payload)
		return message.Ack
	}
	m.Length = sum(m.Payload)
	return q.write(m, p.length)
}

// execute executes a request. On a reliable connection, errors are returned to the sender; on an unreliable one,
// undeliverable messages are dropped.
func (q *QP) execute(m *message.Request) message.Syndrome {
	s := message.InvalidRequest
	switch m.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV:
		if q.SRQ != nil && q.SRQ.Tags != nil {
			s = q.tagged(m)
		} else {
			s = q.receive(m, ibv.WC_RECV)
		}
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		s = q.write(m, m.Length)
	case ibv.WR_RDMA_READ:
		if s = q.locateRead(m); s != message.Ack {
			s = q.refuse(m, s)
		}
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

// establish records that a message has arrived.
func (q *QP) establish() {
	if q.established {
		return
	}
	q.established = true
	if q.State == ibv.QPS_RTR {
		q.Report(ibv.EVENT_COMM_EST)
	}
}

// allows reports whether the queue pair grants its peer an access.
func (q *QP) allows(access ibv.AccessFlags) bool { return q.Attr.QPAccessFlags&access == access }

// write executes a write, or the last part of one with this total number of bytes.
func (q *QP) write(m *message.Request, whole uint64) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_WRITE) {
		return q.refuse(m, message.InvalidRequest)
	}
	var to mem.Segment
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
	recvs, s, answer := q.recvQueueOf(m)
	if recvs == nil {
		return answer
	}
	scatterTo(to, m.Payload)
	id, _ := recvs.First()
	take(recvs, s)
	return q.received(m, recvs, s, recvs.Taken, id, ibv.WC_RECV_RDMA_WITH_IMM, ibv.WC_SUCCESS, whole)
}

func scatterTo(to mem.Segment, from []mem.Segment) {
	for _, s := range from {
		mem.Move(to.Base, s.Base, s.Length)
		to.Base += s.Length
	}
}

// locateRead finds the memory of a read request and stores it in Engine.read, or returns the reason for rejecting it.
func (q *QP) locateRead(m *message.Request) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_READ) || q.Attr.MaxDestRdAtomic == 0 {
		return message.InvalidRequest
	}
	if m.Length == 0 {
		return message.Ack
	}
	from, ok := q.remote(m, m.Length, ibv.ACCESS_REMOTE_READ)
	if !ok {
		return message.RemoteAccess
	}
	q.On.read[0] = from
	return message.Ack
}

// atomic executes an atomic. It stores the old value for the response, and to repeat the response if it is lost.
func (q *QP) atomic(m *message.Request) message.Syndrome {
	if !q.allows(ibv.ACCESS_REMOTE_ATOMIC) || q.Attr.MaxDestRdAtomic == 0 || m.Remote%atomicSize != 0 {
		return q.refuse(m, message.InvalidRequest)
	}
	at, ok := q.remote(m, atomicSize, ibv.ACCESS_REMOTE_ATOMIC)
	if !ok {
		return q.refuse(m, message.RemoteAccess)
	}
	found := mem.Load64(at.Base)
	q.back.Original = found
	switch {
	case m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		mem.Store64(at.Base, found+m.Operand)
	case found == m.Operand:
		mem.Store64(at.Base, m.Swap)
	}
	return message.Ack
}

// flush makes earlier writes visible, which they always are here.
func (q *QP) flush(m *message.Request) message.Syndrome {
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
	ok := false
	if level == ibv.FLUSH_MR {
		k := q.Port.Keys.Get(m.RKey)
		ok = k != nil && q.takesKeysOf(k.Domain) && k.IsFor(&q.User) && k.Access&access == access
	} else {
		_, ok = q.remote(m, m.Length, access)
	}
	if !ok {
		return q.refuse(m, message.RemoteAccess)
	}
	return message.Ack
}

// atomicWrite writes 8 bytes with one store.
func (q *QP) atomicWrite(m *message.Request) message.Syndrome {
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

// receive delivers a send to a posted receive, whose completion has an opcode.
func (q *QP) receive(m *message.Request, opcode ibv.WCOpcode) message.Syndrome {
	recvs, s, answer := q.recvQueueOf(m)
	if recvs == nil {
		return answer
	}
	id, sges := recvs.First()
	status := ibv.WC_REM_INV_REQ_ERR
	if m.Opcode != ibv.WR_SEND_WITH_INV || q.Port.Keys.Bound(uint32(m.Imm), &q.User) != nil {
		status = q.place(recvs.Domain, sges, m.Payload, m.Length)
	}
	take(recvs, s)
	return q.received(m, recvs, s, recvs.Taken, id, opcode, status, m.Length)
}

// receivePart delivers a part of a send. The first part takes the receive.
func (q *QP) receivePart(m *message.Request) message.Syndrome {
	p := &q.Part
	if !m.Continues {
		if p.done = 0; !p.Held {
			recvs, s, answer := q.recvQueueOf(m)
			if recvs == nil {
				return answer
			}
			id, sges := recvs.First()
			p.Held, p.recvs, p.srq, p.id = true, recvs, s, id
			p.sges = append(p.sges[:0], sges...)
			take(recvs, s)
			p.position = recvs.Taken
		}
	}
	if p.orphaned() {
		p.Held = false
		return q.refuse(m, message.InvalidRequest)
	}
	n, status := sum(m.Payload), ibv.WC_SUCCESS
	if !m.More && m.Opcode == ibv.WR_SEND_WITH_INV && q.Port.Keys.Bound(uint32(m.Imm), &q.User) == nil {
		status = ibv.WC_REM_INV_REQ_ERR
	} else if n > 0 {
		status = q.placeAt(p.recvs.Domain, p.sges, p.done, m.Payload, n)
	}
	if m.More && status == ibv.WC_SUCCESS {
		return message.Ack
	}
	p.Held = false
	return q.received(m, p.recvs, p.srq, p.position, p.id, ibv.WC_RECV, status, p.done+n)
}

// collect buffers a send to be matched by its tag until it is complete, or exceeds every buffer.
func (q *QP) collect(m *message.Request) message.Syndrome {
	p := &q.Part
	if !m.Continues {
		p.Whole, p.done = p.Whole[:0], 0
	}
	p.Whole = p.Whole[:p.done] // a retry after a fault starts here
	at := len(p.Whole)
	n := int(sum(m.Payload))
	grows := at+n > cap(p.Whole)
	p.Whole = append(p.Whole, make([]byte, n)...)
	if n > 0 {
		mem.Scatter([]mem.Segment{{Base: mem.AddressOf(&p.Whole[at]), Length: uint64(n)}}, m.Payload)
	}
	if m.More && !(grows && uint64(at+n) > q.SRQ.Greatest()) {
		return message.Ack
	}
	all, length := *m, uint64(len(p.Whole))
	all.Length, all.Payload = length, []mem.Segment{{Base: mem.AddressOf(&p.Whole[0]), Length: length}}
	s := q.tagged(&all)
	if s != message.NotReady {
		p.Whole = nil
	}
	return s
}
