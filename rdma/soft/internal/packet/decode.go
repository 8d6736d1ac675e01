// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// native is the byte order of memory, since an atomic write carries bytes of memory, not a number.
var native = binary.NativeEndian

// Decoder decodes messages from packets. Its message is valid until the next Decode, and while the packet, whose bytes
// are the payload, is unchanged. It must not be used concurrently.
type Decoder struct {
	Request message.Request
	Answer  message.Answer
	MAD     message.MAD

	segments [1]mem.Segment // payload
	packet   []byte         // keeps the payload reachable
}

// Decode reads a packet, from its BTH to its ICRC, which it does not check. from and to are the addresses in the IP
// header. It returns the kind of message, or the reason for rejecting the packet.
//
// A request or read data is the part of its message in this packet: Continues and More give its position, and MTU is 0.
// In a write's first packet, Length is the length of the complete message, which is not verified. AckReq is always set
// in requests with a response of their own type, such as reads and atomics, and never on unreliable transports.
func (d *Decoder) Decode(p []byte, from, to message.Address) (Kind, Reason) {
	if !HasSize(p) {
		return Refused, BadSize
	}
	s := &shapes[p[0]]
	flags, pad := p[1], int(p[1]>>padShift&3)
	switch qpn := order.Uint32(p[4:]) & number; {
	case flags&versionMask != 0:
		return Refused, BadVersion
	case s.kind == Refused:
		return Refused, BadOpcode
	case order.Uint16(p[2:])&0x7fff == 0:
		return Refused, BadPKey
	case qpn == 0 || qpn == number && s.transport != ibv.QPT_UD: // the highest number is for multicast
		return Refused, BadQPN
	}
	d.packet = p
	rest := p[:len(p)-icrcSize]
	n := len(rest) - s.size - pad
	if n < 0 || n > MaxPayload || !s.has(payload) && n+pad > 0 {
		return Refused, BadLength
	}
	d.segments[0] = mem.Segment{}
	segments := d.segments[:0]
	if n > 0 {
		d.segments[0] = mem.Segment{Base: mem.AddressOf(&p[s.size]), Length: uint64(n)}
		segments = d.segments[:1]
	}
	switch s.kind {
	case Request:
		d.request(s, rest, from, to, segments)
		if s.transport == ibv.QPT_UD && d.Request.DestQP == cmQPN {
			return d.mad(s, rest)
		}
		return Request, Accepted
	case Answer:
		if !d.answer(s, rest, from, to, segments) {
			return Refused, BadSyndrome
		}
		return Answer, Accepted
	}
	return s.kind, Accepted
}

// request reads the headers of a request.
func (d *Decoder) request(s *shape, p []byte, from, to message.Address, segments []mem.Segment) {
	d.Request = message.Request{
		From: from, To: to, Transport: s.transport, Opcode: s.opcode,
		PKey: order.Uint16(p[2:]), DestQP: order.Uint32(p[4:]) & number, PSN: order.Uint32(p[8:]) & number,
		Packets: 1, Continues: s.part.continues(), More: s.part.more(), Payload: segments,
	}
	m, at := &d.Request, bthSize
	m.Solicited = p[1]&solicitedBit != 0 && !m.More // valid only in the last packet
	m.AckReq = reliable(s.transport) && (s.has(alwaysAck) || order.Uint32(p[8:])&ackBit != 0)
	if len(segments) > 0 {
		m.Length = segments[0].Length
	}
	if s.has(dynETH) {
		m.Key, m.Life, m.SourceQP = order.Uint64(p[at:]), order.Uint64(p[at+8:]), order.Uint32(p[at+16:])&number
		at += dynETHSize
	}
	if s.has(xrceth) {
		m.SRQ = order.Uint32(p[at:]) & number
		at += 4
	}
	if s.has(deth) {
		m.QKey, m.SourceQP = order.Uint32(p[at:]), order.Uint32(p[at+4:])&number
		at += 8
	}
	if s.has(feth) {
		bits := order.Uint32(p[at:])
		m.Placement, m.Level = bits&placementMask, bits>>levelShift&levelMask
		at += 4
	}
	if s.has(reth) {
		m.Remote, m.RKey, m.Length = order.Uint64(p[at:]), order.Uint32(p[at+8:]), uint64(order.Uint32(p[at+12:]))
		at += 16
	}
	if s.has(atomicETH) {
		m.Remote, m.RKey, m.Length = order.Uint64(p[at:]), order.Uint32(p[at+8:]), atomicSize
		m.Swap, m.Operand = order.Uint64(p[at+12:]), order.Uint64(p[at+20:])
		if m.Opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
			m.Operand, m.Swap = m.Swap, 0
		}
	}
	if s.has(operand) {
		m.Operand = native.Uint64(p[at:])
	}
	if s.has(immDt) {
		m.Imm = ibv.ToBE32(order.Uint32(p[at:]))
	}
	if s.has(ieth) {
		m.Imm = ibv.BE32(order.Uint32(p[at:]))
	}
}

// answer reads the headers of an answer, and reports whether its syndrome is valid.
func (d *Decoder) answer(s *shape, p []byte, from, to message.Address, segments []mem.Segment) bool {
	d.Answer = message.Answer{
		From: from, To: to, Transport: s.transport, Kind: s.answer, PKey: order.Uint16(p[2:]),
		DestQP: order.Uint32(p[4:]) & number, PSN: order.Uint32(p[8:]) & number,
		Continues: s.part.continues(), More: s.part.more(), Data: segments,
	}
	a, at := &d.Answer, bthSize
	if s.has(dynAETH) {
		a.Life = order.Uint64(p[at:])
		at += dynAETHSize
	}
	if !s.has(aeth) {
		return true
	}
	word := order.Uint32(p[at:])
	a.Count = word & number
	if s.has(atomicAckETH) {
		a.Original = order.Uint64(p[at+4:])
	}
	syndrome := byte(word >> 24)
	switch syndrome & syndromeKinds {
	case syndromeAcks: // with or without a credit count
		return true
	case syndromeNotReady:
		a.Syndrome, a.Timer = message.NotReady, syndrome&message.MaxCode
	case syndromeNaks:
		for i, code := range naks {
			if code == syndrome&message.MaxCode && (code != 0 || message.Syndrome(i) == message.OutOfOrder) {
				a.Syndrome = message.Syndrome(i)
			}
		}
	}
	return a.Syndrome != message.Ack && s.answer == message.Plain
}

// mad reads a datagram of the connection manager, decoded as a request before.
func (d *Decoder) mad(s *shape, p []byte) (Kind, Reason) {
	switch {
	case d.Request.QKey != cmQKey:
		return Refused, BadQKey
	case s.opcode != ibv.WR_SEND:
		return Refused, BadMAD
	case d.Request.Length != message.MADSize:
		return Refused, BadLength
	}
	m, err := message.DecodeMAD(p[s.size:])
	if err != nil {
		return Refused, BadMAD
	}
	m.From, m.To = d.Request.From, d.Request.To
	d.MAD = *m
	return MAD, Accepted
}
