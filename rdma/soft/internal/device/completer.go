// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/transport"
)

// Answer takes an answer to a request of one of the device's queue pairs that did not come at once. An answer that does
// not fit is dropped. The caller holds Fabric.mu.
func (d *device) Answer(a *message.Answer) {
	q := d.fabric.qpOf(a.DestQP)
	switch {
	case q == nil || q.device != d:
		d.count(counters.UnknownQP)
		return
	case d.down:
		d.count(counters.WhileDown)
		return
	case a.From.Link != q.out.To.Link:
		d.count(counters.StrangePeer)
		return
	case a.Life != q.out.Life && a.Life != 0:
		d.count(counters.LateAnswers)
		return
	}
	if q.pipeline != nil {
		switch {
		case a.Transport != q.kind: // nobody answers to UC
			d.count(counters.WrongKind)
			return
		case !q.inPartition(a.PKey): // which counts it
			return
		}
		if q.acknowledged(a); !q.moving {
			q.progress()
		}
		return
	}
	if !q.awaits || a.PSN != q.out.PSN {
		d.count(counters.LateAnswers)
		return
	}
	v, data, fits := q.verdictOf(a)
	if fits && data != nil {
		v.status, fits = q.keep(data, func() ibv.WCStatus { return q.copyBack(data) })
	}
	if !fits {
		return
	}
	if v.outcome == finished {
		q.advance()
	}
	q.awaits, q.reply.there, q.reply.verdict = false, true, v
	if q.moving { // the requester has not returned from sending
		return
	}
	if q.stall.timer != 0 {
		d.fabric.clock.Cancel(q.stall.timer)
		q.stall.timer = 0
	}
	q.progress()
}

// keep copies what came back late to where the request wants it, and again where memory of this side turns out to be
// gone. An answer whose own memory is gone cannot be read.
func (q *qp) keep(data []segment, copies func() ibv.WCStatus) (status ibv.WCStatus, read bool) {
	f := q.on
	status, gone := q.tryKeep(copies)
	if gone == nil {
		return status, true
	}
	defer func(before bool) { f.careful = before }(f.careful)
	for range attempts {
		if !mem.TouchAll(data) {
			return status, false
		}
		f.careful = true
		if status, gone = q.tryKeep(copies); gone == nil {
			return status, true
		}
	}
	return ibv.WC_LOC_PROT_ERR, true
}

// tryKeep copies, and returns a panic of memory that is gone.
func (q *qp) tryKeep(copies func() ibv.WCStatus) (status ibv.WCStatus, gone any) {
	f := q.on
	done, before := false, f.guard()
	defer func() {
		f.unguard(before)
		if !done {
			gone = f.fault(recover())
		}
	}()
	status = copies()
	done = true
	return status, nil
}

// acknowledged takes an answer to messages that went as packets. One that fits none of them is dropped. The caller
// holds Fabric.mu.
func (q *qp) acknowledged(a *message.Answer) {
	l := q.pipeline
	s := &l.sender
	if l.flight.len() == 0 || a.Kind == message.Plain && transport.Distance(a.PSN, s.Oldest()) < 0 {
		q.count(counters.LateAnswers)
		return
	}
	news, backs := false, s.Backs()
	switch {
	case a.Kind != message.Plain:
		if news = q.takeData(a); !news {
			q.count(counters.LateAnswers)
		}
	case a.Syndrome == message.Ack:
		news = s.Acknowledge(transport.Next(a.PSN, 1))
		if !news && backs == s.Backs() { // it is for packets that were never sent, or a gap is known
			q.count(counters.LateAnswers)
		}
	default:
		news = s.Acknowledge(a.PSN) // what comes before
		if s.Oldest() == a.PSN && s.Waits() {
			q.refused(a)
			backs = s.Backs() // which it has counted
		} else if !news {
			q.count(counters.LateAnswers)
		}
	}
	if backs != s.Backs() {
		q.count(counters.WentBack)
		q.count(counters.ImpliedGaps)
	}
	if news {
		l.lost, l.notReady, l.due = 0, 0, 0
	}
}

// refused handles the answer that the oldest packet was not taken.
func (q *qp) refused(a *message.Answer) {
	l := q.pipeline
	b := l.flight.at(l.sender.First())
	told, _ := counters.OfRefusal(a.Syndrome)
	switch a.Syndrome {
	case message.OutOfOrder:
		q.count(counters.ToldGaps)
		if l.sender.Missing() {
			q.count(counters.WentBack)
		}
	case message.NotReady:
		if l.pause || l.wait > 0 { // it came twice
			q.count(counters.LateAnswers)
			return
		}
		l.lost = 0
		if q.attr.RNRRetry != forEver {
			if l.notReady >= int(q.attr.RNRRetry) {
				b.status = ibv.WC_RNR_RETRY_EXC_ERR
				break
			}
			l.notReady++
		}
		l.sender.Back(false)
		l.wait = notReadyTime(a.Timer)
	case message.InvalidRequest:
		b.status = ibv.WC_REM_INV_REQ_ERR
	case message.RemoteAccess:
		b.status = ibv.WC_REM_ACCESS_ERR
	default:
		b.status = ibv.WC_REM_OP_ERR
	}
	q.count(told)
}

// takeData copies what an answer brings to the memory of its request, and says whether the answer was the next one.
func (q *qp) takeData(a *message.Answer) bool {
	l := q.pipeline
	i, packet, ok := l.sender.Answer(a.PSN)
	if !ok {
		return false
	}
	b := l.flight.at(i)
	if b.status != ibv.WC_SUCCESS {
		return false
	}
	mtu, atomic := uint64(128)<<q.attr.PathMTU, false
	var length uint64
	if b.rendezvous == readStep {
		length = uint64(q.rendezvous.first().headers.rvh.Len.Host())
	} else {
		r := &q.ring[b.position&q.mask]
		switch r.opcode {
		case ibv.WR_RDMA_READ:
			length = total(q.entries(b.position)[:r.sges])
		case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
			atomic = true
		}
	}
	skip := uint64(packet) * mtu
	if atomic != (a.Kind == message.AtomicData) || !atomic && sum(a.Data) != min(length-skip, mtu) {
		return false
	}
	data := a.Data
	if atomic {
		f := q.on
		f.original = a.Original
		f.data[0] = segment{Base: addressOf(&f.original), Length: atomicSize}
		data = f.data[:]
	}
	if len(data) > 0 {
		status, read := q.keep(data, func() ibv.WCStatus { return q.placeData(b, skip, data) })
		if !read {
			return false
		}
		b.status = status
	}
	l.sender.Answered(i)
	return true
}

// placeData copies data behind the first bytes of a message's memory. It panics where memory is gone.
func (q *qp) placeData(b *begun, skip uint64, data []segment) ibv.WCStatus {
	if b.rendezvous == readStep {
		return q.placeAt(q.srq.recvs.pd, q.rendezvous.first().tag.sges, skip, data, sum(data))
	}
	local, _, status := q.gather(b.position)
	if status == ibv.WC_SUCCESS {
		mem.Scatter(mem.Skip(local, skip), data)
	}
	return status
}
