// SPDX-License-Identifier: BSD-2-Clause

package device

import "github.com/goverbs/goverbs/generated/ibv"

// progress carries out the requests of the send queue, in order, until one has to wait.
func (q *qp) progress() {
	if q.moving { // its own peer
		return
	}
	for !q.run() {
	}
	if q.state == ibv.QPS_SQD && !q.stall.on && q.attr.SQDraining != 0 {
		q.attr.SQDraining = 0
		if q.attr.EnSQDAsyncNotify != 0 {
			q.attr.EnSQDAsyncNotify = 0
			q.tell(ibv.EVENT_SQ_DRAINED)
		}
	}
}

// run is progress until memory of the requests' is found to be gone. It then tries again, with care, so that the
// request whose memory that is ends in a status. The caller holds Fabric.mu.
func (q *qp) run() (done bool) {
	f := q.on
	before := f.guard()
	q.moving = true
	defer func() {
		f.unguard(before)
		q.moving = false
		if done {
			f.calm()
			return
		}
		gone := f.fault(recover(), before)
		if f.tries == attempts {
			f.calm()
			panic(gone)
		}
		f.careful = true
		f.tries++
	}()
	for q.stall.timer == 0 && q.sendRendezvous() && q.next != q.posted {
		r := &q.ring[q.next&q.mask]
		if q.state == ibv.QPS_ERR || q.state == ibv.QPS_SQE {
			q.finish(r, ibv.WC_WR_FLUSH_ERR)
			continue
		}
		if q.state != ibv.QPS_RTS && (q.state != ibv.QPS_SQD || !q.stall.on) {
			break
		}
		v, answered := verdict{}, false
		if q.stall.on { // an answer may have come since it was sent
			v, answered = q.answered()
		}
		if !answered {
			v = q.execute(r)
			f.calm()
		}
		if v.outcome == finished {
			q.finish(r, v.status)
			continue
		}
		if q.state == ibv.QPS_ERR { // by what it did itself
			continue
		}
		if status := q.hold(v.outcome); status != ibv.WC_SUCCESS {
			q.finish(r, status)
			continue
		}
		break
	}
	return true
}

// timeout is the timer of the first request.
func (q *qp) timeout() {
	q.stall.timer = 0
	q.progress()
}

// finish ends the first request of the send queue.
func (q *qp) finish(r *request, status ibv.WCStatus) {
	position := q.next
	q.next++
	if q.stall.on {
		q.settle()
	}
	if status != ibv.WC_SUCCESS || r.flags&ibv.SEND_SIGNALED != 0 || q.signals {
		e := q.sendCQ.next()
		e.wc = ibv.WC{WRID: r.id, Status: status, Opcode: sendOpcodes[r.opcode], QPNum: q.number}
		switch r.opcode {
		case ibv.WR_RDMA_READ:
			e.wc.ByteLen = total(q.entries(position)[:r.sges])
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			e.wc.ByteLen = 8
		}
		e.sender, e.receiver, e.position = q, nil, q.next
		q.sendCQ.publish(e, false)
	}
	if status == ibv.WC_SUCCESS {
		return
	}
	if state, changes := stateAfter(status, q.kind); changes && q.state != ibv.QPS_ERR {
		q.setState(state)
	}
}
