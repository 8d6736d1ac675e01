// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

const (
	mostPackets   = 128       // under way on a connection, as Soft-RoCE has them
	bytesUnderWay = 128 << 10 // that any socket's buffer holds, and that stay in a processor's caches
	mostPartBytes = 60 << 10  // of a part of a message: a datagram that is segmented later
	mostAnswers   = 256       // that wait
)

// usePackets lets the queue pair's messages go as packets, if the wire to its peer takes them so.
func (q *qp) usePackets() {
	if q.pipeline == nil && q.state < ibv.QPS_RTR && q.kind != ibv.QPT_UD && q.on.wire.Packets(&q.out.To) {
		q.pipeline = &pipeline{begin: q.next}
	}
}

// sendPackets sends what may be sent, and ends what is done. The caller holds Fabric.mu.
func (q *qp) sendPackets() {
	l := q.pipeline
	for {
		if q.state == ibv.QPS_ERR || q.state == ibv.QPS_SQE {
			q.giveUp()
			return
		}
		if q.endFirst() {
			continue
		}
		if l.wait > 0 {
			q.hesitate(l.wait)
			l.wait = 0
		}
		if l.pause {
			return
		}
		p, ok := l.sender.Next(q.partPackets())
		if !ok {
			if !q.beginNext() {
				break
			}
			continue
		}
		if !q.sendPart(p) {
			break
		}
	}
	if l.sender.Waits() && !l.pause {
		q.expectAnswer()
	} else if l.timer != 0 && !l.pause && q.on.clock.IsVirtual() { // it would let the time go on
		q.disarm()
	}
}

// mostUnderWay is how many packets may be under way. More of them, as large buffers hold, made large writes on loopback
// half as fast: the kernel's pages that they go through are then in no cache any more when they are used again.
func (q *qp) mostUnderWay() uint32 {
	return min(mostPackets, uint32(bytesUnderWay)>>(7+q.attr.PathMTU))
}

func (q *qp) partPackets() uint32 { return max(uint32(mostPartBytes)>>(7+q.attr.PathMTU), 1) }

// endFirst ends the first message, if it is done or has failed.
func (q *qp) endFirst() bool {
	l := q.pipeline
	if l.flight.len() == 0 {
		return false
	}
	b := l.flight.first()
	if b.status == ibv.WC_SUCCESS && !l.sender.Done() {
		return false
	}
	q.endMessage(b.status)
	return true
}

// endMessage ends the first message with a status.
func (q *qp) endMessage(status ibv.WCStatus) {
	l := q.pipeline
	b := *l.flight.first()
	l.flight.drop()
	l.sender.Take()
	if b.rendezvous == ownRequest {
		q.finish(&q.ring[b.position&q.mask], status)
		return
	}
	r := q.rendezvous.first()
	if b.rendezvous == readStep {
		q.told(r, status, ibv.WC_TM_DATA_VALID, r.headers.rvh.Len.Host())
		q.srq.tags.recycle(r.tag)
	}
	if b.rendezvous == finStep || status != ibv.WC_SUCCESS {
		q.rendezvous.drop()
	} else {
		r.isRead = true
	}
	if status != ibv.WC_SUCCESS {
		q.setState(ibv.QPS_ERR)
	}
}

// giveUp flushes all requests.
func (q *qp) giveUp() {
	q.stopPackets()
	if q.state == ibv.QPS_ERR {
		q.endRendezvous()
	}
	for q.next != q.posted {
		q.finish(&q.ring[q.next&q.mask], ibv.WC_WR_FLUSH_ERR)
	}
	q.pipeline.begin = q.next
}

// stopPackets forgets the messages that were begun.
func (q *qp) stopPackets() {
	l := q.pipeline
	q.disarm()
	l.flight.reset()
	l.sender.Reset(q.psn, q.mostUnderWay())
	l.lost, l.notReady = 0, 0
}

// beginNext begins the next message, and says whether there is one that may begin.
func (q *qp) beginNext() bool {
	l := q.pipeline
	if q.state != ibv.QPS_RTS || l.flight.len() > 0 && l.flight.last().status != ibv.WC_SUCCESS {
		return false
	}
	if l.flight.len() == 0 {
		l.begin = q.next
		if !l.sender.Waits() && l.sender.Oldest() != q.psn || l.sender.Window() == 0 {
			l.sender.Reset(q.psn, q.mostUnderWay())
		}
	}
	if q.rendezvous.len() > 0 {
		return l.flight.len() == 0 && q.beginRendezvous()
	}
	if l.begin == q.posted {
		return false
	}
	r := &q.ring[l.begin&q.mask]
	switch {
	case r.opcode == ibv.WR_LOCAL_INV || r.opcode == ibv.WR_BIND_MW:
		if l.flight.len() > 0 { // what is under way may need the window
			return false
		}
		q.finish(r, q.execute(r).status)
		l.begin = q.next
		return true
	case r.flags&ibv.SEND_FENCE != 0 && l.sender.Asking() > 0:
		return false
	}
	local, length, status := q.gather(l.begin)
	q.on.calm()
	if status == ibv.WC_SUCCESS {
		q.describe(r, local, length)
		if q.returns && l.sender.Asking() >= int(q.attr.MaxRdAtomic) {
			return false
		}
	}
	q.addMessage(begun{position: l.begin, status: status})
	l.begin++
	return true
}

// addMessage begins the message that out describes, or one that fails.
func (q *qp) addMessage(b begun) {
	packets := uint32(1)
	if b.status == ibv.WC_SUCCESS {
		packets = max(q.packets(&q.out), 1)
		q.psn = transport.Next(q.psn, packets)
	}
	q.pipeline.flight.add(b)
	q.pipeline.sender.Begin(packets, b.status == ibv.WC_SUCCESS && asksFor(q.out.Opcode))
}

// asksFor says whether a request is answered with more than an acknowledgement.
func asksFor(opcode ibv.WROpcode) bool {
	switch opcode {
	case ibv.WR_RDMA_READ, ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE:
		return true
	}
	return false
}

// beginRendezvous begins the next message of the first rendezvous: the read, then the FIN.
func (q *qp) beginRendezvous() bool {
	r := q.rendezvous.first()
	b := begun{rendezvous: readStep}
	switch {
	case r.isRead:
		b.rendezvous = finStep
	case r.headers.rvh.Len == 0:
		q.addMessage(b)
		q.endMessage(ibv.WC_SUCCESS)
		return true
	case q.attr.MaxRdAtomic == 0:
		b.status = ibv.WC_LOC_QP_OP_ERR
	}
	q.describeRendezvous(r)
	q.addMessage(b)
	return true
}

// describeRendezvous makes a message of a rendezvous.
func (q *qp) describeRendezvous(r *rendezvous) {
	m, h := &q.out, &r.headers
	m.Solicited, m.Imm, m.SRQ = false, 0, 0
	if !r.isRead {
		m.Opcode, m.Remote, m.RKey, m.Length = ibv.WR_RDMA_READ, h.rvh.VA.Host(), h.rvh.RKey.Host(),
			uint64(h.rvh.Len.Host())
		m.Payload = q.on.from[:0]
		return
	}
	h.tmh.Opcode = ibv.TMH_FIN
	q.on.from[0] = segment{Base: addressOf(h), Length: tmhSize + rvhSize}
	m.Opcode, m.Length, m.Payload = ibv.WR_SEND, tmhSize+rvhSize, q.on.from[:1]
}

// sendPart sends a part of a message. It says whether more may be sent now.
func (q *qp) sendPart(p transport.Part) bool {
	l, m, f := q.pipeline, &q.out, q.on
	b := l.flight.at(p.Message)
	if b.status != ibv.WC_SUCCESS {
		return false
	}
	if b.rendezvous != ownRequest {
		q.describeRendezvous(q.rendezvous.first())
	} else {
		local, length, status := q.gather(b.position)
		if status != ibv.WC_SUCCESS { // its memory is gone by now
			b.status = status
			return true
		}
		q.describe(&q.ring[b.position&q.mask], local, length)
	}
	m.MTU = 128 << q.attr.PathMTU
	skip := uint64(p.First) * uint64(m.MTU)
	m.PSN, m.Packets, m.Continues, m.More = p.PSN, p.Packets, p.First > 0, !p.Last
	n := min(m.Length-skip, uint64(p.Packets)*uint64(m.MTU))
	switch {
	case m.Opcode == ibv.WR_RDMA_READ: // a read of its own for each part
		m.Remote, m.Length, m.Continues, m.More = m.Remote+skip, n, false, false
	case len(m.Payload) > 0:
		m.Payload = cut(mem.Skip(m.Payload, skip), n)
		if m.Continues {
			m.Length = n
		}
	}
	m.AckReq = asksFor(m.Opcode) || l.sender.Asks(p, !p.Last || q.moreFollows(p.Message))
	if q.device.down || m.To.Link == 0 {
		f.lose(m)
	} else {
		_, wait := f.wire.Send(m)
		m.Payload = f.from[:0]
		if wait > 0 {
			q.hesitate(wait)
			return false
		}
	}
	f.calm()
	if again := l.sender.Sent(p); again > 0 {
		if asksFor(m.Opcode) { // the numbers are those of the answer
			again = 1
		}
		l.again += uint64(again)
		q.device.counts[counters.SentAgain] += uint64(again)
	}
	if !q.reliable {
		l.sender.Unreliable()
	}
	return true
}

// cut leaves the first n bytes of a list, which it changes.
func cut(from []segment, n uint64) []segment {
	for i := range from {
		if n <= from[i].Length {
			from[i].Length = n
			return from[:i+1]
		}
		n -= from[i].Length
	}
	return from
}

// moreFollows says whether another message is going to be sent behind the one with an index, whatever is answered.
func (q *qp) moreFollows(message int) bool {
	l := q.pipeline
	if message+1 < l.flight.len() {
		return l.flight.at(message+1).status == ibv.WC_SUCCESS
	}
	if l.begin == q.posted || q.state != ibv.QPS_RTS || q.rendezvous.len() > 0 {
		return false
	}
	r := &q.ring[l.begin&q.mask]
	switch r.opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		return r.flags&ibv.SEND_FENCE == 0
	}
	return false
}

// hesitate lets nothing be sent for a time.
func (q *qp) hesitate(d time.Duration) {
	q.disarm()
	q.pipeline.pause = true
	q.pipeline.timer = q.on.clock.After(d, q.stall.fire)
}

// answerTime is how long the queue pair waits for an answer; 0 is for ever.
func (q *qp) answerTime() int64 {
	if q.attr.Timeout == 0 {
		return 0
	}
	return 4096 << (q.attr.Timeout & 31)
}

// expectAnswer lets the time for an answer count. A timer that is set stays: when it fires, it looks at the time that
// counts by then.
func (q *qp) expectAnswer() {
	l, d := q.pipeline, q.answerTime()
	if d == 0 {
		return
	}
	if l.due == 0 {
		l.due = q.on.clock.Now() + d
	}
	if l.timer == 0 {
		l.timer = q.on.clock.After(time.Duration(d), q.stall.fire)
	}
}

// fired handles the pipeline's timer.
func (q *qp) fired() {
	l := q.pipeline
	l.timer = 0
	if l.pause {
		l.pause = false
		return
	}
	if !l.sender.Waits() || l.flight.len() == 0 || l.due == 0 { // all was answered
		l.due = 0
		return
	}
	if now := q.on.clock.Now(); l.due > now {
		l.timer = q.on.clock.After(time.Duration(l.due-now), q.stall.fire)
		return
	}
	l.due = 0
	q.count(counters.Timeouts)
	if l.lost++; l.lost > int(q.attr.RetryCnt) {
		l.flight.first().status = ibv.WC_RETRY_EXC_ERR
		return
	}
	q.count(counters.WentBack)
	l.sender.Back(true)
}
