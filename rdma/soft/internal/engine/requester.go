// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// mostPartBytes is the size of a part of a message: a datagram that is segmented later.
const mostPartBytes = 60 << 10

// Progress sends the requests of the send queue that may be sent, in order, and ends those that are done.
func (q *QP) Progress() {
	if q.moving { // its own peer
		return
	}
	for !q.run() {
	}
	if q.State == ibv.QPS_SQD && q.Attr.SQDraining != 0 && q.pending.len() == 0 {
		q.Attr.SQDraining = 0
		if q.Attr.EnSQDAsyncNotify != 0 {
			q.Attr.EnSQDAsyncNotify = 0
			q.Report(ibv.EVENT_SQ_DRAINED)
		}
	}
}

// run sends requests until memory of one turns out to be unmapped. Then it repeats that request carefully, which ends
// in a status. The caller holds Core.Mu.
func (q *QP) run() (done bool) {
	f := q.On
	before := f.guard()
	q.moving = true
	defer func() {
		f.unguard(before)
		q.moving = false
		if done {
			f.endRecovery()
			return
		}
		f.again(recover())
	}()
	for {
		switch {
		case q.State == ibv.QPS_ERR || q.State == ibv.QPS_SQE:
			q.flushSends()
			return true
		case q.pending.len() == 0:
			if q.sender == nil && q.next == q.Posted && q.rendezvous.len() == 0 || q.retry.paused || !q.beginNext() {
				if q.sent || q.retry.timer != 0 || q.sender != nil {
					q.setTimer()
				}
				return true
			}
		case q.endIfDone():
		case q.retry.paused || !q.sendPending():
			q.setTimer()
			return true
		}
	}
}

// flushSends completes all requests with an error.
func (q *QP) flushSends() {
	q.stopSending()
	if q.State == ibv.QPS_ERR {
		q.endRendezvous()
	}
	for q.next != q.Posted {
		q.finish(q.Place(q.next), ibv.WC_WR_FLUSH_ERR)
	}
}

// sendPending sends the rest of pending messages, or begins another one. It reports whether more may be sent.
func (q *QP) sendPending() bool {
	if q.sender != nil {
		if p, ok := q.sender.Next(partPackets(q.Attr.PathMTU)); ok {
			b := q.pending.at(p.Message)
			return b.status == ibv.WC_SUCCESS && q.send(q.requestOf(b), &p)
		}
		return q.beginNext()
	}
	if q.sent && q.retry.timer != 0 {
		return false
	}
	// The answer is late, or, without a timer, another request was posted.
	return q.send(q.requestOf(q.pending.first()), nil)
}

// requestOf returns the request of a pending message, or nil in a rendezvous.
func (q *QP) requestOf(b *pending) *Request {
	if b.transfer {
		return nil
	}
	return q.Place(b.position)
}

// beginNext begins the next message if there is one and it may begin, and reports whether it does.
func (q *QP) beginNext() bool {
	waiting := uint32(q.pending.len())
	switch {
	case q.State != ibv.QPS_RTS || q.sender != nil && !q.mayBegin():
		return false
	case q.rendezvous.len() > 0:
		return waiting == 0 && q.beginStep()
	case q.next+waiting == q.Posted:
		return false
	}
	position := q.next + waiting
	switch r := q.Place(position); {
	case r.Opcode == ibv.WR_LOCAL_INV || r.Opcode == ibv.WR_BIND_MW:
		if waiting > 0 { // messages in flight may need the window
			return false
		}
		q.finish(r, q.changeWindow(r))
		return true
	case q.Dynamic != nil && !q.connectTo(r, waiting > 0):
		return false
	case q.sender == nil:
		return q.send(r, nil)
	case r.flags&ibv.SEND_FENCE != 0 && q.sender.Asking() > 0:
		return false
	}
	return q.addMessage(pending{position: position})
}

// mayBegin reports whether a message may begin after the ones in flight as packets.
func (q *QP) mayBegin() bool {
	s := q.sender
	if q.pending.len() > 0 {
		return q.pending.last().status == ibv.WC_SUCCESS
	}
	if s.Window() == 0 || !s.Waits() && s.Oldest() != q.psn {
		s.Reset(q.psn, windowOf(q.Attr.PathMTU))
	}
	return true
}

// beginStep begins the next message of the first rendezvous: the read, or the FIN.
func (q *QP) beginStep() bool {
	if r := q.rendezvous.first(); !r.isRead && r.headers.rvh.Len == 0 {
		q.endTransfer(ibv.WC_SUCCESS)
		return true
	}
	if q.sender == nil {
		return q.send(nil, nil)
	}
	return q.addMessage(pending{transfer: true})
}

// addMessage starts a message that is sent as packets, unless too many reads and atomics are in flight.
func (q *QP) addMessage(b pending) bool {
	packets, asks, length := uint32(1), b.transfer && !q.rendezvous.first().isRead, uint64(0)
	if r := q.requestOf(&b); r != nil {
		if asks = expectsResponse(r.Opcode); r.Opcode < ibv.WR_FLUSH {
			_, length, b.status = q.gather(r)
			q.On.endRecovery()
			if asks && b.status == ibv.WC_SUCCESS && q.sender.Asking() >= int(q.Attr.MaxRdAtomic) {
				return false
			}
		}
	} else if asks {
		length = uint64(q.rendezvous.first().headers.rvh.Len.Host())
		if q.Attr.MaxRdAtomic == 0 {
			b.status = ibv.WC_LOC_QP_OP_ERR
		}
	}
	if b.status == ibv.WC_SUCCESS {
		packets = max(packetsOf(length, q.Attr.PathMTU), 1)
		q.psn = transport.Next(q.psn, packets)
	}
	q.pending.add(b)
	q.sender.Begin(packets, asks && b.status == ibv.WC_SUCCESS)
	return true
}

// send sends a message: complete to a peer in memory, whose answer Send returns, or, with p, a part of it as packets.
// Its request r is nil in a rendezvous. A message to a peer in memory becomes pending if it is not answered. It reports
// whether more may be sent.
func (q *QP) send(r *Request, p *transport.Part) bool {
	m, f := &q.Out, q.On
	n, length, status := 0, uint64(0), ibv.WC_SUCCESS
	if r == nil {
		n, status = q.fillRendezvous()
	} else {
		if r.Opcode < ibv.WR_FLUSH { // later opcodes use no memory of the sender
			n, length, status = q.gather(r)
		}
		m.Opcode, m.Solicited, m.Imm, m.SRQ = r.Opcode, r.flags&ibv.SEND_SOLICITED != 0, ibv.BE32(r.Imm), r.Number
		m.Remote, m.RKey, m.Length = r.Remote, r.RKey, length
		if expectsResponse(r.Opcode) {
			n = 0
			q.fillOperands(r)
		}
		if q.Kind == ibv.QPT_UD && status == ibv.WC_SUCCESS {
			status = q.addressDatagram(r)
		}
	}
	if status != ibv.WC_SUCCESS {
		if p == nil {
			return q.endFirst(r, status)
		}
		f.endRecovery() // its memory was unmapped in the meantime
		q.pending.at(p.Message).status = status
		return true
	}
	m.Payload = m.Payload[:n] // of Engine.from, which gather has filled
	if m.PSN, m.Packets = q.psn, 1; p != nil {
		q.cut(p)
	} else if m.Length > 256 {
		m.Packets = q.packets(m)
	}
	var answer *message.Answer
	if q.Port.Down || m.To.Link == 0 {
		f.lose(m)
	} else {
		var wait time.Duration
		if answer, wait = f.Wire.Send(m); wait > 0 {
			q.pause(wait) // the wire does not accept it yet
			if p == nil {
				return q.awaitAnswer(r, false)
			}
			f.endRecovery()
			m.Payload = f.from[:0]
			return false
		}
	}
	switch {
	case p != nil:
		q.sentPart(p)
		return true
	case answer == nil && q.reliable:
		return q.awaitAnswer(r, true)
	case answer != nil && (answer.Syndrome != message.Ack || returnsData(m.Opcode)):
		return q.takeAnswer(r, answer)
	}
	q.psn = transport.Next(q.psn, m.Packets)
	return q.endFirst(r, ibv.WC_SUCCESS)
}

// fillOperands fills in the fields that only requests with a response have.
func (q *QP) fillOperands(r *Request) {
	switch m := &q.Out; r.Opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		m.Operand, m.Swap = r.Operand, r.Swap
	case ibv.WR_ATOMIC_WRITE:
		m.Operand, m.Length = r.Operand, atomicSize
	case ibv.WR_FLUSH:
		m.Length, m.Placement, m.Level = r.Operand, uint32(r.Swap), uint32(r.Swap>>32)
	}
}

// takeAnswer handles an answer that Send returned, with data or a NAK.
func (q *QP) takeAnswer(r *Request, a *message.Answer) bool {
	if a.Syndrome != message.Ack {
		q.awaitAnswer(r, true)
		q.refused(a)
		return q.endIfDone()
	}
	status, fits := q.takeData(q.firstOf(r), a, 0)
	if !fits {
		return q.awaitAnswer(r, true)
	}
	q.psn = transport.Next(q.psn, q.Out.Packets)
	return q.endFirst(r, status)
}

// firstOf returns the pending message of the first request, or of a rendezvous.
func (q *QP) firstOf(r *Request) pending { return pending{position: q.next, transfer: r == nil} }

// endFirst ends the first message to a peer in memory.
func (q *QP) endFirst(r *Request, status ibv.WCStatus) bool {
	q.On.endRecovery()
	switch {
	case q.pending.len() > 0:
		q.endPending(status)
	case r != nil:
		q.finish(r, status)
	default:
		q.endTransfer(status)
	}
	return true
}

// awaitAnswer makes the first message to a peer in memory pending until its answer arrives, or until it can be sent.
func (q *QP) awaitAnswer(r *Request, sent bool) bool {
	q.On.endRecovery()
	if q.sent = sent; q.pending.len() == 0 {
		q.pending.add(q.firstOf(r))
	}
	return false
}

// addressDatagram fills in the destination of a datagram.
func (q *QP) addressDatagram(r *Request) ibv.WCStatus {
	m, to := &q.Out, &r.AH.Route
	if m.Length > q.Port.bytes() {
		return ibv.WC_LOC_LEN_ERR
	}
	m.From.GID, _ = q.Port.GIDAt(to.SGIDIndex)
	m.To = *r.AH.address(q.On, r.Number)
	m.Route = message.Route{TrafficClass: to.TrafficClass, HopLimit: to.HopLimit}
	m.DestQP, m.QKey, m.MTU = r.Number, r.QKey, uint32(q.Port.bytes())
	if int32(r.QKey) < 0 { // a controlled Q_Key means the queue pair's own
		m.QKey = q.Attr.QKey
	}
	return ibv.WC_SUCCESS
}

// fillRendezvous fills Out with the read or FIN of the first rendezvous. It returns the number of segments of
// Engine.from that are its payload.
func (q *QP) fillRendezvous() (n int, status ibv.WCStatus) {
	m, t := &q.Out, q.rendezvous.first()
	h := &t.headers
	m.Solicited, m.Imm, m.SRQ = false, 0, 0
	if t.isRead {
		h.tmh.Opcode = ibv.TMH_FIN
		q.On.from[0] = mem.Segment{Base: mem.AddressOf(h), Length: tmhSize + rvhSize}
		m.Opcode, m.Length = ibv.WR_SEND, tmhSize+rvhSize
		return 1, ibv.WC_SUCCESS
	}
	m.Opcode, m.Remote, m.RKey = ibv.WR_RDMA_READ, h.rvh.VA.Host(), h.rvh.RKey.Host()
	m.Length = uint64(h.rvh.Len.Host())
	if q.Attr.MaxRdAtomic == 0 {
		return 0, ibv.WC_LOC_QP_OP_ERR
	}
	return 0, ibv.WC_SUCCESS
}

// cut reduces the message in Out to a part of it.
func (q *QP) cut(p *transport.Part) {
	m := &q.Out
	m.MTU = 128 << q.Attr.PathMTU
	skip := uint64(p.First) * uint64(m.MTU)
	m.PSN, m.Packets, m.Continues, m.More = p.PSN, p.Packets, p.First > 0, !p.Last
	n := min(m.Length-skip, uint64(p.Packets)*uint64(m.MTU))
	switch {
	case m.Opcode == ibv.WR_RDMA_READ: // each part is a read
		m.Remote, m.Length, m.Continues, m.More = m.Remote+skip, n, false, false
	case len(m.Payload) > 0:
		m.Payload = cut(mem.Skip(m.Payload, skip), n)
		if m.Continues {
			m.Length = n
		}
	}
	m.AckReq = expectsResponse(m.Opcode) || q.sender.Asks(*p, !p.Last || q.moreFollows(p.Message))
}

// sentPart records that the wire has accepted a part.
func (q *QP) sentPart(p *transport.Part) {
	q.On.endRecovery()
	q.Out.Payload = q.On.from[:0]
	if again := q.sender.Sent(*p); again > 0 {
		if expectsResponse(q.Out.Opcode) { // its sequence numbers belong to the response
			again = 1
		}
		q.resent += uint64(again)
		q.Port.Counts[counters.Retransmitted] += uint64(again)
	}
	if !q.reliable {
		q.sender.Unreliable()
	}
}

// cut reduces a list, in place, to its first n bytes.
func cut(from []mem.Segment, n uint64) []mem.Segment {
	for i := range from {
		if n <= from[i].Length {
			from[i].Length = n
			return from[:i+1]
		}
		n -= from[i].Length
	}
	return from
}

// moreFollows reports whether another message will follow a pending one, whatever the peer answers.
func (q *QP) moreFollows(message int) bool {
	if message+1 < q.pending.len() {
		return q.pending.at(message+1).status == ibv.WC_SUCCESS
	}
	begin := q.next + uint32(q.pending.len())
	if q.rendezvous.len() > 0 || begin == q.Posted || q.State != ibv.QPS_RTS {
		return false
	}
	r := q.Place(begin)
	switch r.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		return r.flags&ibv.SEND_FENCE == 0
	}
	return false
}

// partPackets returns the maximum number of packets in a part of a message.
func partPackets(mtu ibv.MTU) uint32 { return max(uint32(mostPartBytes)>>(7+mtu), 1) }

// timeout handles the timer.
func (q *QP) timeout() {
	t := &q.retry
	t.timer = 0
	switch now := q.On.Clock.Now(); {
	case t.paused:
		t.paused = false
	case !q.waits() || t.due == 0: // everything was answered
		t.due = 0
	case t.due > now:
		t.timer = q.On.Clock.After(time.Duration(t.due-now), t.fire)
		return
	default:
		q.answerTimedOut()
	}
	q.Progress()
}

// changeWindow executes a request to bind or invalidate a window.
func (q *QP) changeWindow(r *Request) ibv.WCStatus {
	if r.Opcode == ibv.WR_BIND_MW {
		if !q.Port.Keys.Bind(r.Window, &r.Bind, q.Protects, &q.User) {
			return ibv.WC_MW_BIND_ERR
		}
		return ibv.WC_SUCCESS
	}
	w := q.Port.Keys.Bound(r.Imm, &q.User)
	if w == nil {
		return ibv.WC_LOC_QP_OP_ERR
	}
	w.Unbind()
	return ibv.WC_SUCCESS
}
