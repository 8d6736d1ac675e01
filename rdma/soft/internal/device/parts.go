// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// arrives handles a request, or a part of one, that travelled as packets. What it answers goes to the wire at once,
// while memory that is gone is recovered from.
func (q *qp) arrives(m *message.Request) {
	l := q.pipeline
	r := &l.receiver
	if !q.reliable {
		q.arrivesUnreliably(m)
		return
	}
	switch r.Arrives(m.PSN) {
	case transport.Gap:
		q.count(counters.Gaps)
		q.answer(message.Plain, message.OutOfOrder, r.Expects)
		return
	case transport.Ignored:
		q.count(counters.BehindGaps)
		return
	case transport.Repeated:
		q.repeated(m)
		return
	}
	s := q.takePart(m)
	if s != message.Ack {
		if s == message.NotReady {
			r.Refused()
		} else {
			l.broke, l.brokeAt = s, m.PSN
		}
		q.answer(message.Plain, s, m.PSN)
		return
	}
	switch {
	case !asksFor(m.Opcode):
		r.Took(m.Packets, !m.More)
		if m.AckReq {
			q.answer(message.Plain, s, transport.Next(r.Expects, psnMask))
		}
	case m.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP || m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		r.Took(1, true)
		r.Keep(m.PSN, q.saved, max(int(q.attr.MaxDestRdAtomic), 1))
		q.answer(message.AtomicData, s, m.PSN)
	default:
		r.Count++ // which the answer says
		q.answerData(m)
		r.Count--
		r.Took(q.answerPackets(m), true)
	}
}

// refuseAgain answers a request that broke the connection, if the answer was lost. The caller holds Fabric.mu.
func (q *qp) refuseAgain(m *message.Request) {
	if l := q.pipeline; l != nil && q.state == ibv.QPS_ERR && l.broke != message.Ack && m.PSN == l.brokeAt &&
		m.From.Link == q.out.To.Link && m.Transport == q.expectsOf {
		q.answer(message.Plain, l.broke, m.PSN)
	}
}

// answerPackets is how many packets the answer to a request takes.
func (q *qp) answerPackets(m *message.Request) uint32 {
	if m.Opcode != ibv.WR_RDMA_READ {
		return 1
	}
	return max(q.packets(m), 1)
}

// repeated answers a request that came before. It is not carried out again, but for a read.
func (q *qp) repeated(m *message.Request) {
	r := &q.pipeline.receiver
	q.count(counters.Repeats)
	switch {
	case m.Opcode == ibv.WR_RDMA_READ:
		if transport.Distance(transport.Next(m.PSN, q.answerPackets(m)), r.Expects) > 0 {
			return
		}
		if q.reads(m) == message.Ack { // a stranger's may be wrong, which breaks nothing
			q.answerData(m)
		}
	case m.Opcode == ibv.WR_ATOMIC_CMP_AND_SWP || m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD:
		if found, ok := r.Found(m.PSN); ok {
			q.saved = found
			q.answer(message.AtomicData, message.Ack, m.PSN)
		}
	case asksFor(m.Opcode):
		q.answerData(m)
	case m.AckReq:
		q.answer(message.Plain, message.Ack, transport.Next(r.Expects, psnMask))
	}
}

// answer sends an answer without data.
func (q *qp) answer(kind message.Kind, s message.Syndrome, psn uint32) {
	a := &q.back
	a.Kind, a.Syndrome, a.PSN, a.Original, a.Count, a.Data = kind, s, psn, q.saved, q.pipeline.receiver.Count, nil
	q.sendAnswer(readRange{})
}

// answerData sends what a request asks for: of a read, the memory that readBy found.
func (q *qp) answerData(m *message.Request) {
	a := &q.back
	a.Kind, a.Syndrome, a.PSN, a.Count, a.Data = message.ReadData, message.Ack, m.PSN, q.pipeline.receiver.Count, nil
	if m.Opcode == ibv.WR_RDMA_READ && m.Length > 0 {
		a.Data = q.on.read[:]
		q.sendAnswer(readRange{remote: m.Remote, rkey: m.RKey, length: m.Length})
		return
	}
	q.sendAnswer(readRange{})
}

// sendAnswer sends the answer that back has, of a read with the memory that Fabric.read has. One of many packets goes
// in parts, so that it holds up no others and a peer cannot have any amount of memory filled with it. Until all of them
// are sent, later answers wait.
func (q *qp) sendAnswer(r readRange) {
	l, a := q.pipeline, &q.back
	a.Transport, a.PKey, a.MTU, a.Continues, a.More = q.expectsOf, q.out.PKey, 128<<q.attr.PathMTU, false, false
	if q.device.down {
		return
	}
	if l.answers.len() > 0 {
		if l.answers.len() < mostAnswers {
			kept := *a
			kept.Data = nil
			l.answers.add(waiting{kept, r})
		}
		return
	}
	q.sendReading(r)
}

// sendReading sends the answer that back has, or its next part. The rest is sent when the clock has gone on.
func (q *qp) sendReading(r readRange) {
	l, a, f := q.pipeline, &q.back, q.on
	n := mostPackets * uint64(a.MTU)
	if r.length <= n {
		f.wire.Answer(a)
		return
	}
	a.More, f.read[0].Length = true, n
	f.wire.Answer(a)
	rest := *a
	rest.Data, rest.Continues, rest.More, rest.PSN = nil, true, false, transport.Next(a.PSN, mostPackets)
	l.answers.add(waiting{rest, readRange{r.remote + n, r.rkey, r.length - n}})
	q.answerSoon()
}

func (q *qp) answerSoon() { q.on.clock.After(0, q.answerWaiting) }

// answerWaiting sends the first answer that waits, or a part of it. Where memory is gone by now, the sender of the
// request asks again, and hears of that. The caller holds Fabric.mu.
func (q *qp) answerWaiting() {
	l := q.pipeline
	if l == nil || l.answers.len() == 0 {
		return
	}
	next := *l.answers.first()
	l.answers.drop()
	if q.device.down || !q.receives() {
		l.answers.reset()
		return
	}
	others := slices.Clone(l.answers.all[l.answers.done:])
	l.answers.reset()
	q.tryKeep(func() ibv.WCStatus {
		q.back = next.answer
		if r := next.reading; r.length > 0 {
			m := message.Request{Remote: r.remote, RKey: r.rkey}
			from, ok := q.remote(&m, r.length, ibv.ACCESS_REMOTE_READ)
			if !ok {
				return ibv.WC_LOC_PROT_ERR
			}
			q.on.read[0] = from
			q.back.Data = q.on.read[:]
		}
		q.sendReading(next.reading)
		return ibv.WC_SUCCESS
	})
	for _, w := range others {
		l.answers.add(w)
	}
	if len(others) > 0 && l.answers.len() == len(others) { // otherwise sendReading has seen to it
		q.answerSoon()
	}
}

// arrivesUnreliably handles a request, or a part of one, that nobody answers. A message of which a part is missing is
// dropped.
func (q *qp) arrivesUnreliably(m *message.Request) {
	l := q.pipeline
	p := &l.part
	if m.Continues && (!p.on || m.PSN != l.receiver.Expects) {
		if q.count(counters.BehindGaps); p.on {
			q.on.lost++
		}
		p.on = false
		return
	}
	if !m.Continues {
		p.on = false
	}
	l.receiver.Expects = transport.Next(m.PSN, m.Packets)
	if q.takePart(m) != message.Ack {
		p.on = false
	}
}

// takePart carries out a request, or takes a part of one.
func (q *qp) takePart(m *message.Request) message.Syndrome {
	p := &q.pipeline.part
	writes := m.Opcode == ibv.WR_RDMA_WRITE || m.Opcode == ibv.WR_RDMA_WRITE_WITH_IMM
	if !m.Continues && !m.More {
		if p.on {
			return q.refuse(m, message.InvalidRequest)
		}
		if !p.held || writes {
			return q.carryOut(m)
		}
	}
	if m.Continues != p.on || m.Continues && writes != p.writes || !q.fitsPart(m, writes) {
		return q.refuse(m, message.InvalidRequest)
	}
	var s message.Syndrome
	switch {
	case writes:
		s = q.takeWrite(m)
	case q.srq != nil && q.srq.tags != nil:
		s = q.takeTagged(m)
	default:
		s = q.takeSend(m)
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

// fitsPart says whether a part has whole packets, unless it is the last one, and the message no more bytes than one
// may have.
func (q *qp) fitsPart(m *message.Request, writes bool) bool {
	p, n := &q.pipeline.part, sum(m.Payload)
	done := uint64(0)
	if m.Continues {
		done = p.done
	}
	switch {
	case n == 0 && (m.More || m.Continues), m.More && n&(128<<q.attr.PathMTU-1) != 0, done+n > maxMessage:
		return false
	case !writes:
		return true
	case !m.Continues:
		return m.Length > n && m.Length <= maxMessage
	case m.More:
		return done+n < p.length
	}
	return done+n == p.length
}

// takeWrite takes a part of a write. Keys are looked up for each part, because a region may go in between.
func (q *qp) takeWrite(m *message.Request) message.Syndrome {
	p := &q.pipeline.part
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
	return q.writtenBy(m, p.length)
}

// takeSend takes a part of a send into a receive, which is taken with the first part.
func (q *qp) takeSend(m *message.Request) message.Syndrome {
	p := &q.pipeline.part
	if !m.Continues {
		if p.done = 0; !p.held {
			recvs, s, answer := q.receiver(m)
			if recvs == nil {
				return answer
			}
			got, sges := recvs.first()
			recvs.take()
			p.held, p.recvs, p.srq, p.position, p.id = true, recvs, s, recvs.taken, got.id
			p.sges = append(p.sges[:0], sges...)
			if s != nil {
				s.took()
			}
		}
	}
	if p.orphaned() {
		p.held = false
		return q.refuse(m, message.InvalidRequest)
	}
	status := ibv.WC_SUCCESS
	if !m.More && m.Opcode == ibv.WR_SEND_WITH_INV && q.boundWindow(uint32(m.Imm)) == nil {
		status = ibv.WC_REM_INV_REQ_ERR
	} else if n := sum(m.Payload); n > 0 {
		status = q.placeAt(p.recvs.pd, p.sges, p.done, m.Payload, n)
	}
	if m.More && status == ibv.WC_SUCCESS {
		return message.Ack
	}
	p.held = false
	c := q.completes(p.srq)
	e := c.next()
	e.wc = ibv.WC{WRID: p.id, Status: status, Opcode: ibv.WC_RECV, ByteLen: uint32(p.done + sum(m.Payload)),
		QPNum: q.number, SrcQP: m.SourceQP}
	e.sender, e.receiver, e.position = nil, p.recvs, p.position
	q.received(m, status, c, e)
	return q.answerOf(status)
}

// takeTagged collects a send until all of it is there, or more than any buffer has room for.
func (q *qp) takeTagged(m *message.Request) message.Syndrome {
	p := &q.pipeline.part
	if !m.Continues {
		p.whole, p.done = p.whole[:0], 0
	}
	p.whole = p.whole[:p.done] // again, where memory turned out to be gone
	at := len(p.whole)
	n := int(sum(m.Payload))
	grows := at+n > cap(p.whole)
	p.whole = append(p.whole, make([]byte, n)...)
	if n > 0 {
		mem.Scatter([]segment{{Base: addressOf(&p.whole[at]), Length: uint64(n)}}, m.Payload)
	}
	if m.More && !(grows && uint64(at+n) > q.srq.greatest()) {
		return message.Ack
	}
	all, length := *m, uint64(len(p.whole))
	all.Length, all.Payload = length, []segment{{Base: addressOf(&p.whole[0]), Length: length}}
	s := q.tagged(&all)
	if s != message.NotReady {
		p.whole = nil
	}
	return s
}
