// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
)

// rendezvous is data that a message announced, and for which it took a tag: the receiver reads it, then tells the
// sender with a message, the FIN. Both go before requests of the receiving queue pair's own that were not begun. Of an
// eager message it is what there is to tell of it.
type rendezvous struct {
	tag       *tag
	headers   tagHeaders
	source    uint32 // number of the sender
	solicited bool
	isRead    bool
}

// startRendezvous lets the data of a rendezvous be read: behind the answer to the message that announced it.
func (q *qp) startRendezvous(r rendezvous) {
	q.rendezvous.add(r)
	q.on.ready = append(q.on.ready, q)
}

// sendRendezvous sends what rendezvous need. It says whether requests of the queue pair's own may go on.
func (q *qp) sendRendezvous() bool {
	for q.rendezvous.len() > 0 && (!q.stall.on || q.stall.rendezvous) {
		switch {
		case q.state == ibv.QPS_ERR:
			q.endRendezvous()
			return true
		case q.state == ibv.QPS_RTS:
		case q.state != ibv.QPS_SQD || !q.stall.rendezvous: // what was begun is ended
			return false
		}
		answered := q.stepRendezvous()
		q.on.calm()
		if !answered {
			return false
		}
	}
	return true
}

// stepRendezvous sends the next message of the first rendezvous, and says whether it was answered.
func (q *qp) stepRendezvous() bool {
	r := q.rendezvous.first()
	v, answered := q.answered()
	if !answered {
		v = q.sendOf(r)
	}
	status := v.status
	if v.outcome != finished {
		q.stall.rendezvous = true
		if status = q.hold(v.outcome); status == ibv.WC_SUCCESS {
			return false
		}
	}
	q.settle()
	if !r.isRead {
		q.told(r, status, ibv.WC_TM_DATA_VALID, r.headers.rvh.Len.Host())
		q.srq.tags.recycle(r.tag)
	}
	if r.isRead || status != ibv.WC_SUCCESS {
		q.rendezvous.drop()
	} else {
		r.isRead = true
	}
	if status != ibv.WC_SUCCESS {
		q.setState(ibv.QPS_ERR)
	}
	return true
}

// endRendezvous gives back the tags whose data was not read.
func (q *qp) endRendezvous() {
	for q.rendezvous.len() > 0 {
		if r := q.rendezvous.first(); !r.isRead {
			q.told(r, ibv.WC_WR_FLUSH_ERR, ibv.WC_TM_DATA_VALID, 0)
			q.srq.tags.recycle(r.tag)
		}
		q.rendezvous.drop()
	}
}

// sendOf sends the read of a rendezvous, or its FIN.
func (q *qp) sendOf(r *rendezvous) verdict {
	if q.stall.spent {
		return failed(ibv.WC_RETRY_EXC_ERR)
	}
	m, h := &q.out, &r.headers
	m.Solicited, m.Imm, m.SRQ, m.Payload, q.reading, q.returns = false, 0, 0, m.Payload[:0], nil, !r.isRead
	if r.isRead {
		h.tmh.Opcode = ibv.TMH_FIN
		q.on.from[0] = segment{Base: addressOf(h), Length: tmhSize + rvhSize}
		m.Opcode, m.Length, m.Payload = ibv.WR_SEND, tmhSize+rvhSize, m.Payload[:1]
		return q.transmit(m)
	}
	m.Opcode, m.Remote, m.RKey, m.Length = ibv.WR_RDMA_READ, h.rvh.VA.Host(), h.rvh.RKey.Host(),
		uint64(h.rvh.Len.Host())
	switch {
	case m.Length == 0:
		return succeeded
	case q.attr.MaxRdAtomic == 0:
		return failed(ibv.WC_LOC_QP_OP_ERR)
	}
	q.reading = r
	return q.transmit(m)
}
