// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

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

// unlockPosted is unlock for those who post: they wait where many packets wait to be sent.
func (f *Fabric) unlockPosted() {
	if len(f.ready)+len(f.overruns) > 0 || f.outgoing {
		f.workAndUnlock(true)
		return
	}
	f.mu.Unlock()
}

// workAndUnlock unlocks also where work panics. The caller holds Fabric.mu.
func (f *Fabric) workAndUnlock(patient bool) {
	defer f.sendAndUnlock(patient)
	f.work()
}

// turns is how often a goroutine sends what others left to it, before another one goes on.
const turns = 16

// sendAndUnlock unlocks, then sends what the outer wire has. The patient wait while many packets are left to others.
// The caller holds Fabric.mu.
func (f *Fabric) sendAndUnlock(patient bool) {
	for turn := 0; f.outgoing; turn++ {
		f.outgoing = false
		l, crowded := f.outer.Take()
		f.mu.Unlock()
		switch {
		case l != nil && turn == turns:
			go f.sendOn(l)
			return
		case l != nil:
			l.Flush()
			if !f.outer.IsFilled() {
				return
			}
		case crowded != nil && patient:
			crowded.Rest()
		default:
			return
		}
		f.mu.Lock()
		f.outgoing = true
	}
	f.mu.Unlock()
}

// sendOn sends what Take or Turn gave, and what others leave. It needs no lock: it has the link's.
func (f *Fabric) sendOn(l *roce.Link) {
	l.Flush()
	f.mu.Lock()
	f.outgoing = true
	f.sendAndUnlock(false)
}

// Sent waits until all is sent that was written before, also what is left to another goroutine that sends. It takes
// Fabric.mu.
func (f *Fabric) Sent() {
	if f.polled.Load() == nil {
		return
	}
	f.mu.Lock()
	all := f.outer.Links()
	f.mu.Unlock()
	for _, l := range all {
		l.Await()
		f.mu.Lock()
		l.Turn()
		f.mu.Unlock()
		f.sendOn(l) // others may have left packets meanwhile
	}
}

// Filled says that the outer wire has packets to send. The caller holds Fabric.mu.
func (f *Fabric) Filled() { f.outgoing = true }
