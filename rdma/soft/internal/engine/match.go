// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// tagged stores a message in the buffer of its tag, or in a plain receive if no tag matches, and then invalidates the
// window that the message names.
func (q *QP) tagged(m *message.Request) message.Syndrome {
	if m.Opcode != ibv.WR_SEND_WITH_INV {
		return q.matched(m)
	}
	w := q.Port.Keys.Bound(uint32(m.Imm), &q.User)
	if w == nil {
		return q.refuse(m, message.InvalidRequest)
	}
	s := q.matched(m)
	if s == message.Ack {
		w.Unbind()
	}
	return s
}

func (q *QP) matched(m *message.Request) message.Syndrome {
	s, h := q.SRQ, &q.On.headers
	*h = tagHeaders{}
	peek(mem.AddressOf(h), tmhSize+rvhSize, m.Payload)
	op := h.tmh.Opcode
	if m.Length < tmhSize || op == ibv.TMH_RNDV && (m.Length < tmhSize+rvhSize || m.Length > rndvBytes) {
		op = ibv.TMH_NO_TAG
	}
	if op != ibv.TMH_EAGER && op != ibv.TMH_RNDV {
		return q.untagged(m, ibv.WC_TM_NO_TAG)
	}
	i := s.Tags.Match(h.tmh.Tag.Host())
	if i < 0 {
		return q.untagged(m, ibv.WC_TM_RECV)
	}
	e := s.Tags.Entries[i]
	r := rendezvous{tag: e, headers: *h, source: m.SourceQP, solicited: m.Solicited}
	if op == ibv.TMH_EAGER {
		n := m.Length - tmhSize
		payload := q.On.framed[:copy(q.On.framed[:], m.Payload)] // which the message keeps as it is
		status := q.place(s.Recvs.Domain, e.SGEs, mem.Skip(payload, tmhSize), n)
		s.Tags.Take(i)
		q.completeTag(&r, status, ibv.WC_TM_MATCH|ibv.WC_TM_DATA_VALID, uint32(n))
		s.Tags.Recycle(e)
		return q.answerOf(status)
	}
	n := h.rvh.Len.Host()
	if uint64(n) > resource.Room(e.SGEs) { // the program has to go on: it finds both headers in the buffer
		headers := mem.Segment{Base: mem.AddressOf(h), Length: tmhSize + rvhSize}
		status := q.place(s.Recvs.Domain, e.SGEs, []mem.Segment{headers}, headers.Length)
		s.Tags.Take(i)
		if status != ibv.WC_SUCCESS {
			q.completeTag(&r, status, ibv.WC_TM_MATCH, 0)
			s.Tags.Recycle(e)
			return q.answerOf(status)
		}
		q.completeTag(&r, ibv.WC_TM_RNDV_INCOMPLETE, ibv.WC_TM_MATCH, uint32(headers.Length))
		s.Tags.Recycle(e)
		return message.Ack
	}
	s.Tags.Take(i)
	q.completeTag(&r, ibv.WC_SUCCESS, ibv.WC_TM_MATCH, n)
	q.rendezvous.add(r) // its data is read behind the answer to this message
	q.On.Ready = append(q.On.Ready, q)
	return message.Ack
}

// completeTag publishes a completion of a receive with a tag. Only the completion of the matching message carries the
// tag; that of the data read later does not.
func (q *QP) completeTag(r *rendezvous, status ibv.WCStatus, flags ibv.WCFlags, n uint32) {
	c := q.SRQ.CQ.Next()
	*c = resource.Completion{
		WC: ibv.WC{WRID: r.tag.ID, Status: status, Opcode: ibv.WC_TM_RECV, ByteLen: n, QPNum: q.Number, SrcQP: r.source,
			WCFlags: flags},
	}
	if flags&ibv.WC_TM_MATCH != 0 {
		c.Tag, c.Priv = r.headers.tmh.Tag.Host(), r.headers.tmh.AppCtx.Host()
	}
	q.SRQ.CQ.Publish(c, r.solicited)
}

// untagged stores a message in a plain receive.
func (q *QP) untagged(m *message.Request, opcode ibv.WCOpcode) message.Syndrome {
	recvs, s, answer := q.recvQueueOf(m)
	if recvs == nil {
		return answer
	}
	id, sges := recvs.First()
	status := q.place(recvs.Domain, sges, m.Payload, m.Length)
	take(recvs, s)
	c := q.completes(s)
	e := c.NextOf(recvs, recvs.Taken)
	*e = resource.Completion{WC: ibv.WC{WRID: id, Status: status, Opcode: opcode, ByteLen: uint32(m.Length),
		QPNum: q.Number, SrcQP: m.SourceQP}, Slot: e.Slot}
	describeSend(m, e)
	if opcode == ibv.WC_TM_RECV {
		s.Tags.Unexpected++
		if s.Tags.Holds() {
			e.WC.WCFlags |= ibv.WC_TM_SYNC_REQ
		}
	}
	c.Publish(e, m.Solicited)
	return q.answerOf(status)
}

// peek copies the first bytes of a message, at most as many as it has.
func peek(to uint64, n uint64, from []mem.Segment) {
	for _, s := range from {
		k := min(n, s.Length)
		mem.Move(to, s.Base, k)
		to, n = to+k, n-k
	}
}
