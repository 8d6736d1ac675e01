// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// renew clears the state of the peer and of the messages.
func (q *QP) renew() {
	q.out = message.Request{From: message.Address{Link: q.port.link}, Transport: q.kind, PKey: q.port.pkeys[0],
		SourceQP: q.number, Life: q.on.newLife(), Payload: q.on.from[:0]}
	q.back = message.Answer{}
	q.psn, q.sender, q.resent = 0, nil, 0
	q.receiver.Reset(0)
	q.heard, q.arriving = false, nil
}

// setState moves the queue pair to a state, with the actions of that transition.
func (q *QP) setState(to ibv.QPState) {
	f := q.on
	q.state, q.attr.SQDraining = to, 0
	switch to {
	case ibv.QPS_RESET:
		q.stopSending()
		if q.arriving != nil {
			q.part.giveBack()
		}
		q.next = q.posted
		q.rendezvous.reset()
		q.retired.Store(q.posted)
		if q.recvs != nil {
			q.recvs.Reset()
		}
		q.attr, q.established = ibv.QPAttr{}, false
		q.renew()
	case ibv.QPS_RTS:
		f.ready = append(f.ready, q)
	case ibv.QPS_SQD:
		q.attr.SQDraining = 1
		f.ready = append(f.ready, q)
	case ibv.QPS_SQE:
		f.ready = append(f.ready, q)
	case ibv.QPS_ERR:
		q.flushRecvs()
		if q.srq != nil {
			q.report(ibv.EVENT_QP_LAST_WQE_REACHED)
		}
		f.ready = append(f.ready, q)
	}
}

// stopSending forgets the pending messages.
func (q *QP) stopSending() {
	q.stopTimer()
	q.pending.reset()
	q.sent, q.retry.lost, q.retry.notReady, q.retry.due = false, 0, 0, 0
	if q.sender != nil {
		q.sender.Reset(q.psn, windowOf(q.attr.PathMTU))
	}
}

const (
	mostPackets   = 128       // in flight on a connection, as with Soft-RoCE
	bytesInFlight = 128 << 10 // that any socket's buffer holds, and that stay in a processor's caches
)

// windowOf is how many packets may be in flight. More of them, as large buffers hold, made large writes on loopback
// half as fast: the kernel's pages that they go through are then in no cache any more when they are used again.
func windowOf(mtu ibv.MTU) uint32 { return min(mostPackets, uint32(bytesInFlight)>>(7+mtu)) }

// stopTimer ends a pause as well.
func (q *QP) stopTimer() {
	if t := &q.retry; t.timer != 0 {
		q.on.clock.Cancel(t.timer)
		t.timer, t.paused = 0, false
	}
}

// flushRecvs flushes all unused receives, starting with that of an incomplete message.
func (q *QP) flushRecvs() {
	if q.arriving != nil {
		if p := &q.part; p.held && !p.orphaned() {
			q.flushRecv(q.completes(p.srq), p.recvs, p.position, p.id)
		}
		q.part = part{}
	}
	for q.recvs != nil && !q.recvs.Empty() {
		id, _ := q.recvs.First()
		q.recvs.Take()
		q.flushRecv(q.recvCQ, q.recvs, q.recvs.Taken, id)
	}
}

func (q *QP) flushRecv(c *CQ, recvs *resource.RecvQueue, position uint32, id uint64) {
	e := c.nextOf(recvs, position)
	e.wc = ibv.WC{WRID: id, Status: ibv.WC_WR_FLUSH_ERR, Opcode: ibv.WC_RECV, QPNum: q.number}
	c.publish(e, false)
}

// refuse returns the answer to a forbidden request: a reliable connection breaks on both sides, and the responder gets
// an event if it gets no completion.
func (q *QP) refuse(m *message.Request, s message.Syndrome) message.Syndrome {
	_, tells := counters.OfRefusal(s)
	q.count(tells)
	if !m.IsReliable() {
		return s
	}
	event := ibv.EVENT_QP_REQ_ERR
	if s == message.RemoteAccess {
		event = ibv.EVENT_QP_ACCESS_ERR
	}
	q.report(event)
	q.setState(ibv.QPS_ERR)
	return s
}

// receives reports whether messages come in, in this state.
func (q *QP) receives() bool { return q.state >= ibv.QPS_RTR && q.state <= ibv.QPS_SQE }

// inPartition reports whether a message has a key of the queue pair's partition, and one of the two is a full member's.
func (q *QP) inPartition(key uint16) bool {
	const full = 0x8000
	a, b := key, q.out.PKey
	if (a^b)&^full == 0 && (a|b)&full != 0 {
		return true
	}
	q.count(counters.BadPKey)
	return false
}

// completesIn reports whether a completion queue is one of the queue pair's: also that of shared receives, or of any of
// its XRC domain.
func (q *QP) completesIn(c *CQ) bool {
	if q.sendCQ == c || q.recvCQ == c || q.srq != nil && q.srq.cq == c {
		return true
	}
	return q.kind == ibv.QPT_XRC_RECV && slices.ContainsFunc(q.on.numbers.All(), func(object numbered) bool {
		s := object.srq
		return s != nil && s.cq == c && s.domain == q.domain
	})
}

// overrun breaks the queue pairs whose completions have no place any more.
func (e *Engine) overrun(c *CQ) {
	for _, object := range e.numbers.All() {
		if q := object.qp; q != nil && q.completesIn(c) && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
			q.report(ibv.EVENT_QP_FATAL)
			q.setState(ibv.QPS_ERR)
		}
	}
}
