package device

import (
	"runtime/debug"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// progress carries out the requests of the send queue, in order, until one has to wait.
func (q *qp) progress() {
	if q.moving { // its own peer
		return
	}
	for !q.run() {
	}
	q.on.careful = false
	if q.state == ibv.QPS_SQD && !q.stall.on && q.attr.SQDraining != 0 {
		q.attr.SQDraining = 0
		if q.attr.EnSQDAsyncNotify != 0 {
			q.attr.EnSQDAsyncNotify = 0
			q.tell(ibv.EVENT_SQ_DRAINED)
		}
	}
}

// run is progress until memory is found to be gone that was registered. The request whose data lies there is begun
// again, with care then.
func (q *qp) run() (done bool) {
	before := debug.SetPanicOnFault(true)
	q.moving = true
	defer func() {
		debug.SetPanicOnFault(before)
		q.moving = false
		if !done {
			q.on.recovered(recover(), nil)
		}
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
			q.on.careful = false
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

// recovered goes on after a panic of an access to memory that is gone: while f.careful is set, memory is looked at
// before it is used, and what is not there ends in a status. Other panics go on, and so does one that happens
// nevertheless.
func (f *Fabric) recovered(panicked any, sending *qp) {
	f.sending = sending
	if !mem.FaultOf(panicked) || f.careful {
		f.careful = false
		panic(panicked)
	}
	f.careful = true
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
