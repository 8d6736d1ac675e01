package soft

import "github.com/goverbs/goverbs/generated/ibv"

// receiver is the queue that a message takes a receive of, or nil with what the sender hears: there is no receive, or no such queue.
func (peer *qp) receiver(q *qp, r *request) (recvs *recvQueue, s *srq, v verdict) {
	if peer.kind == ibv.QPT_XRC_RECV {
		s, _ = q.fabric().numbers.get(r.number).(*srq)
		if s == nil || s.kind != ibv.SRQT_XRC || s.domain != peer.domain || s.device != peer.device {
			return nil, nil, peer.refuse(q, ibv.WC_REM_INV_REQ_ERR)
		}
	} else {
		s = peer.srq
	}
	if recvs = peer.recvs; s != nil {
		recvs = s.recvs
	}
	reliable := q.kind != ibv.QPT_UC && q.kind != ibv.QPT_UD
	switch {
	case reliable && (recvs.empty() || q.fabric().faults.NotReady):
		return nil, nil, q.unready()
	case recvs.empty():
		return nil, nil, succeeded
	}
	return recvs, s, succeeded
}

// unready is the answer of a peer that is not ready.
func (q *qp) unready() verdict {
	q.fabric().counters.NotReady++
	return verdict{outcome: notReady}
}

// completes is the completion queue that a receive completes in.
func (peer *qp) completes(s *srq) *cq {
	if s != nil && s.cq != nil {
		return s.cq
	}
	return peer.recvCQ
}

// receive takes a message of the peer's into a receive.
func (peer *qp) receive(q *qp, r *request, local []segment, length uint64) verdict {
	if peer.srq != nil && peer.srq.tags != nil {
		return peer.tagged(q, r, local, length)
	}
	recvs, s, v := peer.receiver(q, r)
	if recvs == nil {
		return v
	}
	got, sges := recvs.take()
	if s != nil {
		s.took()
	}
	c := peer.completes(s)
	e := c.next()
	e.wc = ibv.WC{WRID: got.id, Opcode: ibv.WC_RECV, ByteLen: uint32(length), QPNum: peer.number, SrcQP: q.number}
	e.sender, e.receiver, e.position = nil, recvs, recvs.taken
	status, answer := ibv.WC_REM_INV_REQ_ERR, ibv.WC_REM_INV_REQ_ERR
	if r.opcode != ibv.WR_SEND_WITH_INV || peer.boundWindow(r.imm) != nil {
		status, answer = peer.place(recvs.pd, sges, local, length), ibv.WC_SUCCESS
	}
	switch status {
	case ibv.WC_LOC_LEN_ERR:
		answer = ibv.WC_REM_INV_REQ_ERR
	case ibv.WC_LOC_PROT_ERR:
		answer = ibv.WC_REM_OP_ERR
	case ibv.WC_SUCCESS:
		switch r.opcode {
		case ibv.WR_SEND_WITH_IMM:
			e.wc.WCFlags = ibv.WC_WITH_IMM
			*e.wc.ImmData() = ibv.BE32(r.imm)
		case ibv.WR_SEND_WITH_INV:
			peer.boundWindow(r.imm).unbind()
			e.wc.WCFlags = ibv.WC_WITH_INV
			*e.wc.InvalidatedRKey() = r.imm
		}
	}
	e.wc.Status = status
	c.publish(e, r.flags&ibv.SEND_SOLICITED != 0)
	if status != ibv.WC_SUCCESS {
		peer.setState(ibv.QPS_ERR)
	}
	return failed(answer)
}

// place scatters a message to the entries of a receive, once it is sure that it fits and may go there.
func (peer *qp) place(p *pd, sges []ibv.SGE, from []segment, length uint64) ibv.WCStatus {
	f := peer.fabric()
	n, rest := 0, length
	for _, s := range sges {
		if rest == 0 {
			break
		}
		if s.Length == 0 {
			continue
		}
		to, ok := peer.device.keys.local(p, s, ibv.ACCESS_LOCAL_WRITE)
		if !ok {
			return ibv.WC_LOC_PROT_ERR
		}
		f.to[n] = to
		n++
		rest -= min(rest, to.length)
	}
	if rest > 0 {
		return ibv.WC_LOC_LEN_ERR
	}
	if len(from) == 1 && n == 1 {
		move(f.to[0].base, from[0].base, length)
		return ibv.WC_SUCCESS
	}
	scatter(f.to[:n], from)
	return ibv.WC_SUCCESS
}

// flushRecvs gives back all receives that were not used.
func (q *qp) flushRecvs() {
	for q.recvs != nil && !q.recvs.empty() {
		got, _ := q.recvs.take()
		e := q.recvCQ.next()
		e.wc = ibv.WC{WRID: got.id, Status: ibv.WC_WR_FLUSH_ERR, Opcode: ibv.WC_RECV, QPNum: q.number}
		e.sender, e.receiver, e.position = nil, q.recvs, q.recvs.taken
		q.recvCQ.publish(e, false)
	}
}
