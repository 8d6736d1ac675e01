// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// renew clears the state of the peer and of messages.
func (q *QP) renew() {
	q.Out = message.Request{From: message.Address{Link: q.Port.Link}, Transport: q.ExpectsOf, PKey: q.Port.PKeys[0],
		SourceQP: q.Number, Life: q.On.newLife(), Payload: q.On.from[:0]}
	q.back = message.Answer{}
	q.psn, q.sender, q.resent = 0, nil, 0
	q.Receiver.Reset(0)
	q.heard, q.arriving = false, nil
}

// SetState moves the queue pair to a state and performs the actions of the transition.
func (q *QP) SetState(to ibv.QPState) {
	f := q.On
	q.State, q.Attr.SQDraining = to, 0
	if q.Dynamic != nil && (to == ibv.QPS_RESET || to == ibv.QPS_ERR) {
		q.Dynamic.endConnections()
	}
	switch to {
	case ibv.QPS_RESET:
		q.stopSending()
		if q.arriving != nil {
			q.Part.giveBack()
		}
		q.next = q.Posted
		q.rendezvous.reset()
		q.retired.Store(q.Posted)
		if q.Recvs != nil {
			q.Recvs.Reset()
		}
		q.Attr, q.established = ibv.QPAttr{}, false
		q.renew()
	case ibv.QPS_RTS:
		f.Ready = append(f.Ready, q)
	case ibv.QPS_SQD:
		q.Attr.SQDraining = 1
		f.Ready = append(f.Ready, q)
	case ibv.QPS_SQE:
		f.Ready = append(f.Ready, q)
	case ibv.QPS_ERR:
		q.FlushRecvs()
		if q.SRQ != nil {
			q.Report(ibv.EVENT_QP_LAST_WQE_REACHED)
		}
		f.Ready = append(f.Ready, q)
	}
}

// stopSending discards the pending messages.
func (q *QP) stopSending() {
	q.stopTimer()
	q.pending.reset()
	q.sent, q.retry.lost, q.retry.notReady, q.retry.due = false, 0, 0, 0
	if q.sender != nil {
		q.sender.Reset(q.psn, windowOf(q.Attr.PathMTU))
	}
}

const (
	mostPackets   = 128       // in flight on a connection, as on Soft-RoCE
	bytesInFlight = 128 << 10 // fits in every socket buffer and in the processor's caches
)

// windowOf returns the maximum number of packets in flight. More packets, as large socket buffers would hold, halved
// the rate of large writes on loopback: the kernel's pages were no longer in any cache when they were reused.
func windowOf(mtu ibv.MTU) uint32 { return min(mostPackets, uint32(bytesInFlight)>>(7+mtu)) }

// stopTimer cancels the timer, which also ends a pause.
func (q *QP) stopTimer() {
	if t := &q.retry; t.timer != 0 {
		q.On.Clock.Cancel(t.timer)
		t.timer, t.paused = 0, false
	}
}

// FlushRecvs flushes all unused receives, starting with that of an incomplete message.
func (q *QP) FlushRecvs() {
	if q.arriving != nil {
		if p := &q.Part; p.Held && !p.orphaned() {
			q.flushRecv(q.completes(p.srq), p.recvs, p.position, p.id)
		}
		q.Part = part{}
	}
	for q.Recvs != nil && !q.Recvs.Empty() {
		id, _ := q.Recvs.First()
		q.Recvs.Take()
		q.flushRecv(q.RecvCQ, q.Recvs, q.Recvs.Taken, id)
	}
}

func (q *QP) flushRecv(c *resource.CQ, recvs *resource.RecvQueue, position uint32, id uint64) {
	slot := resource.Slot{Receives: recvs, Position: position}
	c.Publish(c.Next(slot, id, ibv.WC_WR_FLUSH_ERR, ibv.WC_RECV, q.Number), false)
}

// refuse rejects a forbidden request and returns the answer: a reliable connection breaks on both sides, and the
// responder's program gets an event.
func (q *QP) refuse(m *message.Request, s message.Syndrome) message.Syndrome {
	_, sent := counters.OfNAK(s)
	q.count(sent)
	if !m.IsReliable() {
		return s
	}
	event := ibv.EVENT_QP_REQ_ERR
	if s == message.RemoteAccess {
		event = ibv.EVENT_QP_ACCESS_ERR
	}
	q.Report(event)
	q.SetState(ibv.QPS_ERR)
	return s
}

// receives reports whether the queue pair accepts messages in its state.
func (q *QP) receives() bool { return q.State >= ibv.QPS_RTR && q.State <= ibv.QPS_SQE }

// inPartition reports whether a message's key belongs to the queue pair's partition and one of the two is a full
// member.
func (q *QP) inPartition(key uint16) bool {
	const full = 0x8000
	a, b := key, q.Out.PKey
	return (a^b)&^full == 0 && (a|b)&full != 0
}

// completesIn reports whether a completion queue receives completions of the queue pair, also through its shared
// receive queue or any of its XRC domain.
func (q *QP) completesIn(c *resource.CQ) bool {
	if q.SendCQ == c || q.RecvCQ == c || q.SRQ != nil && q.SRQ.CQ == c {
		return true
	}
	return q.Kind == ibv.QPT_XRC_RECV && slices.ContainsFunc(q.On.Numbers.All(), func(object Numbered) bool {
		s := object.SRQ
		return s != nil && s.CQ == c && s.Domain == q.Domain
	})
}

// overrun breaks the queue pairs of a full completion queue.
func (e *Engine) overrun(c *resource.CQ) {
	for _, object := range e.Numbers.All() {
		if q := object.QP; q != nil && q.completesIn(c) && q.State != ibv.QPS_RESET && q.State != ibv.QPS_ERR {
			q.Report(ibv.EVENT_QP_FATAL)
			q.SetState(ibv.QPS_ERR)
		}
	}
}
