// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// renew forgets what the queue pair knows of its peer, and of its messages.
func (q *qp) renew() {
	q.out = message.Request{From: message.Address{Link: q.device.link}, Transport: q.kind, PKey: q.device.pkeys[0],
		SourceQP: q.number, Life: q.on.newLife(), Payload: q.on.from[:0]}
	q.back = message.Answer{}
	q.psn, q.awaits, q.reply, q.reading, q.pipeline = 0, false, reply{}, nil, nil
	q.heard, q.expects, q.last = false, 0, noPSN
}

// setState brings the queue pair to a state, and does what comes with it.
func (q *qp) setState(to ibv.QPState) {
	f := q.fabric()
	q.state, q.attr.SQDraining = to, 0
	switch to {
	case ibv.QPS_RESET:
		q.settle()
		if q.pipeline != nil {
			q.disarm()
			q.pipeline.part.giveBack()
		}
		q.next = q.posted
		q.rendezvous.reset()
		q.retired.Store(q.posted)
		if q.recvs != nil {
			q.recvs.reset()
		}
		q.attr, q.established = ibv.QPAttr{}, false
		q.renew()
	case ibv.QPS_RTS:
		f.ready = append(f.ready, q)
	case ibv.QPS_SQD:
		q.attr.SQDraining = 1
		f.ready = append(f.ready, q)
	case ibv.QPS_SQE:
		q.settle()
		f.ready = append(f.ready, q)
	case ibv.QPS_ERR:
		q.settle()
		q.flushRecvs()
		if q.srq != nil {
			q.tell(ibv.EVENT_QP_LAST_WQE_REACHED)
		}
		f.ready = append(f.ready, q)
	}
}

// settle forgets why the first request waited.
func (q *qp) settle() {
	if !q.stall.on {
		return
	}
	if q.stall.timer != 0 {
		q.fabric().clock.Cancel(q.stall.timer)
	}
	q.stall = stall{fire: q.stall.fire}
	if !q.moving {
		q.awaits, q.reply.there = false, false
	}
}

// flushRecvs gives back all receives that were not used: first the one that a message has of which parts are missing.
func (q *qp) flushRecvs() {
	if q.pipeline != nil {
		if p := &q.pipeline.part; p.held && !p.orphaned() {
			q.flushRecv(q.completes(p.srq), p.recvs, p.position, p.id)
		}
		q.pipeline.part = part{}
	}
	for q.recvs != nil && !q.recvs.empty() {
		got, _ := q.recvs.first()
		q.recvs.take()
		q.flushRecv(q.recvCQ, q.recvs, q.recvs.taken, got.id)
	}
}

func (q *qp) flushRecv(c *cq, recvs *recvQueue, position uint32, id uint64) {
	e := c.next()
	e.wc = ibv.WC{WRID: id, Status: ibv.WC_WR_FLUSH_ERR, Opcode: ibv.WC_RECV, QPNum: q.number}
	e.sender, e.receiver, e.position = nil, recvs, position
	c.publish(e, false)
}

// refuse is the answer to a request that may not be carried out: a reliable connection breaks on both sides, and an
// event tells the side that answers, where no completion does.
func (q *qp) refuse(m *message.Request, s message.Syndrome) message.Syndrome {
	_, tells := counters.OfRefusal(s)
	q.count(tells)
	if !m.IsReliable() {
		return s
	}
	event := ibv.EVENT_QP_REQ_ERR
	if s == message.RemoteAccess {
		event = ibv.EVENT_QP_ACCESS_ERR
	}
	q.tell(event)
	q.setState(ibv.QPS_ERR)
	return s
}

// receives says whether messages come in, in this state.
func (q *qp) receives() bool { return q.state >= ibv.QPS_RTR && q.state <= ibv.QPS_SQE }

// inPartition says whether a message has a key of the queue pair's partition, and one of the two is a full member's.
func (q *qp) inPartition(key uint16) bool {
	const full = 0x8000
	a, b := key, q.out.PKey
	if (a^b)&^full == 0 && (a|b)&full != 0 {
		return true
	}
	q.count(counters.BadPKey)
	return false
}

// tell queues an event for all who have a handle.
func (q *qp) tell(kind ibv.EventType) {
	if !q.closed {
		q.context.tell(kind, addressOf(q.record), &q.asyncs)
	}
	for _, o := range q.handles {
		o.context.tell(kind, addressOf(o.record), &o.asyncs)
	}
}

func (q *qp) reported() *reports { return &q.asyncs }

// noPSN is no packet sequence number.
const noPSN = 1 << 24

func (q *qp) disarm() {
	if l := q.pipeline; l.timer != 0 {
		q.on.clock.Cancel(l.timer)
		l.timer, l.pause = 0, false
	}
}

// overrun breaks the queue pairs whose completions have no place any more.
func (f *Fabric) overrun(c *cq) {
	for _, object := range f.numbers.All() {
		if q := object.qp; q != nil && q.completesIn(c) && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
			q.tell(ibv.EVENT_QP_FATAL)
			q.setState(ibv.QPS_ERR)
		}
	}
}

// completesIn says whether a completion queue is one of the queue pair's: also that of shared receives, or of any of
// its XRC domain.
func (q *qp) completesIn(c *cq) bool {
	if q.sendCQ == c || q.recvCQ == c || q.srq != nil && q.srq.cq == c {
		return true
	}
	return q.kind == ibv.QPT_XRC_RECV && slices.ContainsFunc(q.fabric().numbers.All(), func(object numbered) bool {
		s := object.srq
		return s != nil && s.cq == c && s.domain == q.domain
	})
}
