// SPDX-License-Identifier: BSD-2-Clause

package device

import "github.com/goverbs/goverbs/generated/ibv"

// progress carries out the requests of the send queue, in order, until one has to wait.
func (q *qp) progress() {
	if q.moving { // its own peer
		return
	}
	if q.pipeline == nil {
		for !q.run() {
		}
	} else {
		for !q.runPackets() {
		}
	}
	if q.state == ibv.QPS_SQD && q.attr.SQDraining != 0 && !q.stall.on &&
		(q.pipeline == nil || q.pipeline.flight.len() == 0) {
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
		f.again(recover())
	}()
	for q.stall.timer == 0 && (q.rendezvous.len() == 0 || q.sendRendezvous()) && q.next != q.posted {
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

// again lets a guard begin once more, with care, after a panic. Other panics, and too many, go on. The caller holds
// Fabric.mu.
func (f *Fabric) again(panicked any) {
	gone := f.fault(panicked)
	if f.tries == attempts {
		f.calm()
		panic(gone)
	}
	f.careful = true
	f.tries++
}

// runPackets is run for messages that travel as packets. A test of q.pipeline in run would cost each message of the
// others. The caller holds Fabric.mu.
func (q *qp) runPackets() (done bool) {
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
		f.again(recover())
	}()
	q.sendPackets()
	return true
}

// timeout is the timer of the first request.
func (q *qp) timeout() {
	if q.stall.timer = 0; q.pipeline != nil {
		q.fired()
	}
	q.progress()
}
