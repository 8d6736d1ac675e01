package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Answer takes an answer to a request of one of the device's queue pairs, whenever it comes. The caller holds
// Fabric.mu.
func (d *device) Answer(a *message.Answer) {
	q := d.fabric.sending
	if q == nil || q.number != a.DestQP {
		q = d.fabric.numbers.qp(a.DestQP)
	}
	if q == nil || q.device != d || d.down || !q.awaits || a.PSN != q.out.PSN || a.Life != q.out.Life {
		return
	}
	if a.Syndrome == message.Ack && !q.returns {
		q.awaits = false
		q.advance()
		q.reply.there, q.reply.verdict = true, succeeded
	} else {
		q.complete(a)
	}
	if q.moving { // the requester has not returned from sending
		return
	}
	if q.stall.timer != 0 {
		d.fabric.clock.Cancel(q.stall.timer)
		q.stall.timer = 0
	}
	q.progress()
}

// complete makes a verdict of an answer. What it brings goes to the memory of the request.
func (q *qp) complete(a *message.Answer) {
	v := succeeded
	switch a.Syndrome {
	case message.Ack:
		switch q.out.Opcode {
		case ibv.WR_RDMA_READ:
			if sum(a.Data) != q.out.Length {
				return // it is not the answer to this
			}
			v.status = q.keep(a.Data)
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			f := q.fabric()
			f.original = a.Original
			f.data[0] = segment{Base: addressOf(&f.original), Length: atomicSize}
			v.status = q.keep(f.data[:1])
		}
	case message.NotReady:
		q.fabric().counters.NotReady++
		v.outcome, q.reply.timer = notReady, a.Timer
	case message.InvalidRequest:
		v.status = ibv.WC_REM_INV_REQ_ERR
	case message.RemoteAccess:
		v.status = ibv.WC_REM_ACCESS_ERR
	default:
		v.status = ibv.WC_REM_OP_ERR
	}
	q.awaits = false
	if v.outcome == finished {
		q.advance()
	}
	q.reply.there, q.reply.verdict = true, v
}

// keep copies what came back to where the request wants it.
func (q *qp) keep(data []segment) ibv.WCStatus {
	if q.reading != nil {
		return q.place(q.srq.recvs.pd, q.reading.tag.sges, data, q.out.Length)
	}
	local := q.fabric().from[:]
	if !q.moving { // other requests were sent since
		var status ibv.WCStatus
		if local, _, status = q.gather(&q.ring[q.next&q.mask]); status != ibv.WC_SUCCESS {
			return status
		}
	}
	mem.Scatter(local, data)
	return ibv.WC_SUCCESS
}

// sum is how many bytes segments have.
func sum(of []segment) (n uint64) {
	for i := range of {
		n += of[i].Length
	}
	return n
}
