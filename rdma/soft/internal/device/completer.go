// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Answer takes an answer to a request of one of the device's queue pairs, whenever it comes. An answer that does not
// fit is dropped. The caller holds Fabric.mu.
func (d *device) Answer(a *message.Answer) {
	q := d.fabric.sending
	if q == nil || q.number != a.DestQP {
		q = d.fabric.numbers.qp(a.DestQP)
	}
	if q == nil || q.device != d || d.down || !q.awaits || a.PSN != q.out.PSN || a.From.Link != q.out.To.Link ||
		a.Life != q.out.Life && a.Life != 0 {
		return
	}
	if a.Syndrome == message.Ack && !q.returns {
		q.awaits = false
		q.advance()
		q.reply.there, q.reply.verdict = true, succeeded
	} else {
		q.complete(a)
		if !q.reply.there {
			return
		}
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
			if sum(a.Data) != q.out.Length || len(a.Data) > message.MaxSegments {
				return // it is not the answer to this
			}
			var read bool
			if v.status, read = q.keep(a.Data); !read {
				return
			}
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			f := q.fabric()
			f.original = a.Original
			f.data[0] = segment{Base: addressOf(&f.original), Length: atomicSize}
			v.status, _ = q.keep(f.data[:1])
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

// keep copies what came back to where the request wants it, and again where memory of this side turns out to be gone.
// Where the memory of the answer is gone, the responder hears of the panic, if it is in the middle of answering; other
// answers cannot be read.
func (q *qp) keep(data []segment) (status ibv.WCStatus, read bool) {
	f := q.on
	if f.bySender() {
		return q.copyBack(data), true
	}
	status, gone := q.tryKeep(data)
	if gone == nil {
		return status, true
	}
	defer func(before bool) { f.careful = before }(f.careful)
	for range attempts {
		if !mem.TouchAll(data) {
			if f.guarded {
				panic(gone)
			}
			return status, false
		}
		f.careful = true
		if status, gone = q.tryKeep(data); gone == nil {
			return status, true
		}
	}
	return ibv.WC_LOC_PROT_ERR, true
}

// tryKeep is copyBack, and returns a panic of memory that is gone.
func (q *qp) tryKeep(data []segment) (status ibv.WCStatus, gone any) {
	f := q.on
	done, before := false, f.guard()
	defer func() {
		f.unguard(before)
		if !done {
			gone = f.fault(recover(), before)
		}
	}()
	status = q.copyBack(data)
	done = true
	return status, nil
}

// copyBack copies what came back. It panics where memory is gone.
func (q *qp) copyBack(data []segment) ibv.WCStatus {
	if q.reading != nil {
		return q.place(q.srq.recvs.pd, q.reading.tag.sges, data, q.out.Length)
	}
	f := q.on
	local := f.from[:]
	if !q.moving || f.careful { // other requests were sent since, or the memory was not touched
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
