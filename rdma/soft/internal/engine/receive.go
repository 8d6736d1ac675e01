// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// recvQueueOf returns the queue from which a message takes a receive, or nil and the answer to the message: no receive
// or no such queue exists.
func (q *QP) recvQueueOf(m *message.Request) (recvs *resource.RecvQueue, s *resource.SRQ, answer message.Syndrome) {
	if q.Kind == ibv.QPT_XRC_RECV {
		s = q.On.srqOf(m.SRQ)
		if s == nil || s.Kind != ibv.SRQT_XRC || s.Domain != q.Domain {
			return nil, nil, q.refuse(m, message.InvalidRequest)
		}
	} else {
		s = q.SRQ
	}
	if recvs = q.Recvs; s != nil {
		recvs = s.Recvs
	}
	if recvs.Empty() {
		if m.IsReliable() {
			q.count(counters.SentRNRNAKs)
		} else {
			q.count(counters.NoReceive)
		}
		return nil, nil, message.NotReady
	}
	return recvs, s, message.Ack
}

// take takes the first receive of a queue, which may be shared.
func take(recvs *resource.RecvQueue, s *resource.SRQ) {
	if recvs.Take(); s != nil {
		s.Took()
	}
}

// received completes the receive before a position, which a message of n bytes took. It returns the answer to the
// sender.
func (q *QP) received(m *message.Request, recvs *resource.RecvQueue, s *resource.SRQ, position uint32, id uint64,
	opcode ibv.WCOpcode, status ibv.WCStatus, n uint64) message.Syndrome {
	c := q.completes(s)
	e := c.Next(resource.Slot{Receives: recvs, Position: position}, id, status, opcode, q.Number)
	e.WC.ByteLen, e.WC.SrcQP = uint32(n), m.SourceQP
	if status == ibv.WC_SUCCESS {
		describe(m, e)
		if m.Opcode == ibv.WR_SEND_WITH_INV {
			q.Port.Keys.Bound(uint32(m.Imm), &q.User).Unbind()
		}
	}
	if opcode == ibv.WC_TM_RECV { // no tag matched
		s.Tags.Unexpected++
		if s.Tags.Holds() {
			e.WC.WCFlags |= ibv.WC_TM_SYNC_REQ
		}
	}
	c.Publish(e, m.Solicited)
	return q.responseTo(status)
}

// describe fills in the fields of a receive completion that describe the message, other than its data.
func describe(m *message.Request, e *resource.Completion) {
	switch m.Opcode {
	case ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM:
		e.WC.WCFlags |= ibv.WC_WITH_IMM
		*e.WC.ImmData() = m.Imm
	case ibv.WR_SEND_WITH_INV:
		e.WC.WCFlags |= ibv.WC_WITH_INV
		*e.WC.InvalidatedRKey() = uint32(m.Imm)
	}
}

// responseTo returns the answer to a message that was delivered with a status. An error breaks the queue pair.
func (q *QP) responseTo(status ibv.WCStatus) message.Syndrome {
	if status == ibv.WC_SUCCESS {
		q.count(counters.Receives)
		return message.Ack
	}
	q.SetState(ibv.QPS_ERR)
	switch status {
	case ibv.WC_LOC_PROT_ERR:
		return message.RemoteOperation
	case ibv.WC_LOC_LEN_ERR:
		q.count(counters.TooLong)
	}
	return message.InvalidRequest
}

// place scatters a message to the entries of a receive, after checking length and access. Callers change state only
// afterwards: if memory is unmapped, the message is handled once more.
func (q *QP) place(d *resource.Domain, sges []ibv.SGE, from []mem.Segment, length uint64) ibv.WCStatus {
	f := q.On
	if len(sges) == 1 && len(from) == 1 && length > 0 && !f.Careful { // the usual case
		to, ok := q.Port.Keys.Local(d, sges[0], ibv.ACCESS_LOCAL_WRITE)
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
	return q.placeAt(d, sges, 0, from, length)
}

// placeAt is place, after the first skip bytes of the entries.
func (q *QP) placeAt(d *resource.Domain, sges []ibv.SGE, skip uint64, from []mem.Segment, length uint64) ibv.WCStatus {
	f := q.On
	n, rest := 0, length
	for _, s := range sges {
		if rest == 0 {
			break
		}
		if skip >= uint64(s.Length) { // also an empty entry
			skip -= uint64(s.Length)
			continue
		}
		s.Addr += skip
		s.Length -= uint32(skip)
		skip = 0
		to, ok := q.Port.Keys.Local(d, s, ibv.ACCESS_LOCAL_WRITE)
		if !ok || f.Careful && !mem.Touch(to, true) {
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

// remote returns the memory at a message's remote address and key, and whether the access is allowed.
func (q *QP) remote(m *message.Request, length uint64, access ibv.AccessFlags) (mem.Segment, bool) {
	k := q.Port.Keys.Get(m.RKey)
	if k == nil || !q.takesKeysOf(k.Domain) || !k.IsFor(&q.User) {
		return mem.Segment{}, false
	}
	s, ok := k.Locate(m.Remote, length, access)
	if q.On.Careful && ok {
		ok = mem.Touch(s, access&(ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_ATOMIC) != 0)
	}
	return s, ok
}

// takesKeysOf reports whether a peer may use keys of a protection domain. A receiving XRC queue pair has none of its
// own and accepts those of its domain's shared receive queues.
func (q *QP) takesKeysOf(d *resource.Domain) bool {
	if q.Protects == nil {
		return q.Domain.PDs[d] > 0
	}
	return q.Protects == d
}

// carry delivers a datagram to a receive, after the header with its addresses. Anyone can send a datagram, so none
// breaks the queue pair: one that is longer than the receive is dropped, and the receive stays for the next. In a
// shared receive queue, where that would block other queue pairs, the receive completes in error. The caller holds
// Core.Mu.
func (q *QP) carry(m *message.Request) *message.Answer {
	f := q.On
	if !q.receives() {
		q.count(counters.WrongState)
		return nil
	}
	if !q.inPartition(m.PKey) {
		q.count(counters.BadPKey)
		return nil
	}
	if m.QKey != q.Attr.QKey {
		q.count(counters.BadQKey)
		return nil
	}
	recvs, s, _ := q.recvQueueOf(m)
	if recvs == nil {
		return nil
	}
	q.Receiver.Expects = (m.PSN + 1) & PSNMask
	id, sges := recvs.First()
	status := ibv.WC_REM_INV_REQ_ERR
	if m.Length+GRHSize <= resource.Room(sges) {
		f.header = grhOf(m)
		copy(f.framed[1:], m.Payload)
		f.framed[0] = mem.Segment{Base: mem.AddressOf(&f.header[0]), Length: GRHSize}
		status = q.place(recvs.Domain, sges, f.framed[:1+len(m.Payload)], m.Length+GRHSize)
	} else if q.count(counters.TooLong); s == nil {
		return nil
	}
	take(recvs, s)
	c := q.completes(s)
	e := c.Next(resource.Slot{Receives: recvs, Position: recvs.Taken}, id, status, ibv.WC_RECV, q.Number)
	e.WC.ByteLen, e.WC.SrcQP = uint32(m.Length)+GRHSize, m.SourceQP
	e.WC.WCFlags, e.WC.PKeyIndex = ibv.WC_GRH, q.Attr.PKeyIndex
	describe(m, e)
	c.Publish(e, m.Solicited)
	switch status {
	case ibv.WC_SUCCESS:
		q.count(counters.Receives)
	case ibv.WC_LOC_PROT_ERR:
		q.SetState(ibv.QPS_ERR)
	}
	return nil
}
