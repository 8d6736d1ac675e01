// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
)

// tagged delivers a message to the buffer of its tag, or to a plain receive if no tag matches, then invalidates the
// window that the message names.
func (q *QP) tagged(m *message.Request) message.Syndrome {
	if m.Opcode != ibv.WR_SEND_WITH_INV {
		return q.match(m)
	}
	w := q.Port.Keys.Bound(uint32(m.Imm), &q.User)
	if w == nil {
		return q.refuse(m, message.InvalidRequest)
	}
	s := q.match(m)
	if s == message.Ack {
		w.Unbind()
	}
	return s
}

// match finds the tag of a message and delivers the message.
func (q *QP) match(m *message.Request) message.Syndrome {
	s, h := q.SRQ, &q.On.headers
	*h = tagHeaders{}
	peek(mem.AddressOf(h), tmhSize+rvhSize, m.Payload)
	op := h.tmh.Opcode
	if m.Length < tmhSize || op == ibv.TMH_RNDV && (m.Length < tmhSize+rvhSize || m.Length > rndvBytes) {
		op = ibv.TMH_NO_TAG
	}
	if op != ibv.TMH_EAGER && op != ibv.TMH_RNDV {
		return q.receive(m, ibv.WC_TM_NO_TAG)
	}
	i := s.Tags.Match(h.tmh.Tag.Host())
	if i < 0 {
		return q.receive(m, ibv.WC_TM_RECV)
	}
	e := s.Tags.Entries[i]
	r := rendezvous{tag: e, headers: *h, source: m.SourceQP, solicited: m.Solicited}
	if op == ibv.TMH_EAGER {
		n := m.Length - tmhSize
		payload := q.On.framed[:copy(q.On.framed[:], m.Payload)] // a copy: the message may be handled again
		status := q.place(s.Recvs.Domain, e.SGEs, mem.Skip(payload, tmhSize), n)
		s.Tags.Take(i)
		q.completeTag(&r, status, ibv.WC_TM_MATCH|ibv.WC_TM_DATA_VALID, uint32(n))
		s.Tags.Recycle(e)
		return q.responseTo(status)
	}
	n := h.rvh.Len.Host()
	if uint64(n) > resource.Room(e.SGEs) { // the program continues the transfer: it finds both headers in the buffer
		headers := mem.Segment{Base: mem.AddressOf(h), Length: tmhSize + rvhSize}
		status := q.place(s.Recvs.Domain, e.SGEs, []mem.Segment{headers}, headers.Length)
		s.Tags.Take(i)
		if status != ibv.WC_SUCCESS {
			q.completeTag(&r, status, ibv.WC_TM_MATCH, 0)
			s.Tags.Recycle(e)
			return q.responseTo(status)
		}
		q.completeTag(&r, ibv.WC_TM_RNDV_INCOMPLETE, ibv.WC_TM_MATCH, uint32(headers.Length))
		s.Tags.Recycle(e)
		return message.Ack
	}
	s.Tags.Take(i)
	q.completeTag(&r, ibv.WC_SUCCESS, ibv.WC_TM_MATCH, n)
	q.rendezvous.add(r) // its data is read after the answer to this message
	q.On.Ready = append(q.On.Ready, q)
	return message.Ack
}

// completeTag publishes a completion of a matched receive. Only the completion of the match contains the tag, not that
// of data that is read later.
func (q *QP) completeTag(r *rendezvous, status ibv.WCStatus, flags ibv.WCFlags, n uint32) {
	c := q.SRQ.CQ.Next(resource.Slot{}, r.tag.ID, status, ibv.WC_TM_RECV, q.Number)
	c.WC.ByteLen, c.WC.SrcQP, c.WC.WCFlags = n, r.source, flags
	if flags&ibv.WC_TM_MATCH != 0 {
		c.Tag, c.Priv = r.headers.tmh.Tag.Host(), r.headers.tmh.AppCtx.Host()
	}
	q.SRQ.CQ.Publish(c, r.solicited)
}

// peek copies up to n bytes from the start of a message.
func peek(to uint64, n uint64, from []mem.Segment) {
	for _, s := range from {
		k := min(n, s.Length)
		mem.Move(to, s.Base, k)
		to, n = to+k, n-k
	}
}
