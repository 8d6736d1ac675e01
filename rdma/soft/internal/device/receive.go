// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
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
		if m.IsReliable() {
			q.count(counters.TellsNotReady)
		} else {
			q.count(counters.NoReceive)
		}
		return nil, nil, message.NotReady
	}
	return recvs, s, message.Ack
}

// answerOf is what the sender hears of a message that was, or was not, placed.
func (q *qp) answerOf(status ibv.WCStatus) message.Syndrome {
	if status == ibv.WC_SUCCESS {
		q.count(counters.Receives)
		return message.Ack
	}
	q.setState(ibv.QPS_ERR)
	if status == ibv.WC_LOC_PROT_ERR {
		return message.RemoteOperation
	}
	return message.InvalidRequest
}

// received completes the receive of a send, with an entry that tells the rest.
func (q *qp) received(m *message.Request, status ibv.WCStatus, c *cq, e *completion) {
	if status == ibv.WC_SUCCESS {
		switch m.Opcode {
		case ibv.WR_SEND_WITH_IMM:
			e.wc.WCFlags = ibv.WC_WITH_IMM
			*e.wc.ImmData() = m.Imm
		case ibv.WR_SEND_WITH_INV:
			q.boundWindow(uint32(m.Imm)).unbind()
			e.wc.WCFlags = ibv.WC_WITH_INV
			*e.wc.InvalidatedRKey() = uint32(m.Imm)
		}
	}
	c.publish(e, m.Solicited)
}
