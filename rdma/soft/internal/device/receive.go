// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// receiver is the queue that a message takes a receive of, or nil with what the sender hears: there is no receive, or
// no such queue.
func (q *qp) receiver(m *message.Request) (recvs *recvQueue, s *srq, answer message.Syndrome) {
	if q.kind == ibv.QPT_XRC_RECV {
		s = q.fabric().numbers.srq(m.SRQ)
		if s == nil || s.kind != ibv.SRQT_XRC || s.domain != q.domain || s.device != q.device {
			return nil, nil, q.refuse(m, message.InvalidRequest)
		}
	} else {
		s = q.srq
	}
	if recvs = q.recvs; s != nil {
		recvs = s.recvs
	}
	if recvs.empty() {
		return nil, nil, message.NotReady
	}
	return recvs, s, message.Ack
}

// completes is the completion queue that a receive completes in.
func (q *qp) completes(s *srq) *cq {
	if s != nil && s.cq != nil {
		return s.cq
	}
	return q.recvCQ
}

// answerOf is what the sender hears of a message that was, or was not, placed.
func (q *qp) answerOf(status ibv.WCStatus) message.Syndrome {
	if status == ibv.WC_SUCCESS {
		return message.Ack
	}
	q.setState(ibv.QPS_ERR)
	if status == ibv.WC_LOC_PROT_ERR {
		return message.RemoteOperation
	}
	return message.InvalidRequest
}

// place scatters a message to the entries of a receive, once it is sure that it fits and may go there. It comes before
// anything is changed that the message changes: when the memory is gone, the message comes once more.
func (q *qp) place(p *pd, sges []ibv.SGE, from []segment, length uint64) ibv.WCStatus {
	f := q.on
	if len(sges) == 1 && len(from) == 1 && length > 0 && !f.careful { // as most are
		to, ok := q.device.keys.local(p, sges[0], ibv.ACCESS_LOCAL_WRITE)
		switch {
		case sges[0].Length == 0:
			return ibv.WC_LOC_LEN_ERR
		case !ok:
			return ibv.WC_LOC_PROT_ERR
		case to.Length < length:
			return ibv.WC_LOC_LEN_ERR
		}
		mem.Move(to.Base, from[0].Base, length)
		return ibv.WC_SUCCESS
	}
	n, rest := 0, length
	for _, s := range sges {
		if rest == 0 {
			break
		}
		if s.Length == 0 {
			continue
		}
		to, ok := q.device.keys.local(p, s, ibv.ACCESS_LOCAL_WRITE)
		if !ok || f.careful && !mem.Touch(to, true) {
			return ibv.WC_LOC_PROT_ERR
		}
		f.to[n] = to
		n++
		rest -= min(rest, to.Length)
	}
	if rest > 0 {
		return ibv.WC_LOC_LEN_ERR
	}
	mem.Scatter(f.to[:n], from)
	return ibv.WC_SUCCESS
}
