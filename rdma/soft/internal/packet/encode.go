// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// AppendRequest writes the packets of a request, or of a part of a request: a packet for each MTU of payload, with
// consecutive sequence numbers. If another part follows, the payload must be a multiple of the MTU. An MTU of 0 means a
// single packet.
//
// If the payload's memory is unmapped, AppendRequest panics, as mem.Move does, and leaves an incomplete packet in the
// output.
func AppendRequest(out Output, m *message.Request) {
	c := cut(m.Payload, m.MTU, m.PSN, m.Continues, m.More)
	for {
		n, part, end := c.next()
		code := requestCode(m.Transport, m.Opcode, part)
		s := &shapes[code]
		pad := padOf(n)
		p := out.Packet(s.size + n + pad + icrcSize)
		h := bth{
			opcode: code, solicited: m.Solicited && !part.more(), pad: uint8(pad), pkey: m.PKey, qpn: m.DestQP,
			ack: end && m.AckReq || s.has(alwaysAck), psn: c.psn,
		}
		h.put(p)
		s.putRequest(p, m)
		c.write(p, n)
		if end {
			return
		}
	}
}

// putRequest writes the headers after the BTH.
func (s *shape) putRequest(p []byte, m *message.Request) {
	at := bthSize
	if s.has(dynETH) {
		order.PutUint64(p[at:], m.Key)
		order.PutUint64(p[at+8:], m.Life)
		order.PutUint32(p[at+16:], m.SourceQP&number)
		at += dynETHSize
	}
	if s.has(xrceth) {
		order.PutUint32(p[at:], m.SRQ&number)
		at += 4
	}
	if s.has(deth) {
		order.PutUint32(p[at:], m.QKey)
		order.PutUint32(p[at+4:], m.SourceQP&number)
		at += 8
	}
	if s.has(feth) {
		order.PutUint32(p[at:], m.Level&levelMask<<levelShift|m.Placement&placementMask)
		at += 4
	}
	if s.has(reth) {
		order.PutUint64(p[at:], m.Remote)
		order.PutUint32(p[at+8:], m.RKey)
		order.PutUint32(p[at+12:], uint32(m.Length))
		at += 16
	}
	if s.has(atomicETH) {
		swap, compare := m.Swap, m.Operand
		if m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
			swap, compare = m.Operand, 0
		}
		order.PutUint64(p[at:], m.Remote)
		order.PutUint32(p[at+8:], m.RKey)
		order.PutUint64(p[at+12:], swap)
		order.PutUint64(p[at+20:], compare)
	}
	if s.has(operand) {
		native.PutUint64(p[at:], m.Operand)
	}
	if s.has(immDt) {
		order.PutUint32(p[at:], m.Imm.Host())
	}
	if s.has(ieth) {
		order.PutUint32(p[at:], uint32(m.Imm))
	}
}

// AppendAnswer writes the packets of an answer. Read data is split as in AppendRequest; any other answer is a single
// packet. It panics if the memory of the data is unmapped.
func AppendAnswer(out Output, a *message.Answer) {
	kind := a.Kind
	if a.Syndrome != message.Ack {
		kind = message.Plain
	}
	if kind != message.ReadData {
		code := answerCode(a.Transport, kind, only)
		p := out.Packet(shapes[code].size + icrcSize)
		h := bth{opcode: code, pkey: a.PKey, qpn: a.DestQP, psn: a.PSN}
		h.put(p)
		at := shapes[code].putLife(p, a)
		putAETH(p[at:], a)
		if kind == message.AtomicData {
			order.PutUint64(p[at+4:], a.Original)
		}
		return
	}
	c := cut(a.Data, a.MTU, a.PSN, a.Continues, a.More)
	for {
		n, part, end := c.next()
		code := answerCode(a.Transport, kind, part)
		s := &shapes[code]
		pad := padOf(n)
		p := out.Packet(s.size + n + pad + icrcSize)
		h := bth{opcode: code, pad: uint8(pad), pkey: a.PKey, qpn: a.DestQP, psn: c.psn}
		h.put(p)
		if at := s.putLife(p, a); s.has(aeth) {
			putAETH(p[at:], a)
		}
		c.write(p, n)
		if end {
			return
		}
	}
}

// putLife writes the first header of an answer on a dynamic connection, and returns the offset of the next header.
func (s *shape) putLife(p []byte, a *message.Answer) int {
	if !s.has(dynAETH) {
		return bthSize
	}
	order.PutUint64(p[bthSize:], a.Life)
	return bthSize + dynAETHSize
}

// putAETH writes the AETH: the syndrome and the message sequence number.
func putAETH(p []byte, a *message.Answer) {
	syndrome := uint32(syndromeAck)
	switch a.Syndrome {
	case message.Ack:
	case message.NotReady:
		syndrome = syndromeNotReady | uint32(a.Timer&message.MaxCode)
	default:
		syndrome = syndromeNaks | uint32(naks[a.Syndrome])
	}
	order.PutUint32(p, syndrome<<24|a.Count&number)
}

// AppendMAD writes a connection manager datagram as a single packet. It returns an error if a value does not fit its
// field.
func AppendMAD(out Output, m *message.MAD, psn uint32) error {
	b, err := m.Encode()
	if err != nil {
		return fmt.Errorf("packet: %w", err)
	}
	const code = ibv.OPCODE_UD_SEND_ONLY
	s := &shapes[code]
	p := out.Packet(s.size + len(b) + icrcSize)
	h := bth{opcode: code, pkey: cmPKey, qpn: cmQPN, psn: psn}
	h.put(p)
	s.putRequest(p, &message.Request{QKey: cmQKey, SourceQP: cmQPN})
	copy(p[s.size:], b)
	return nil
}
