// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"encoding/binary"
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// The byte layout of requests and answers is private to this module: the fields in order, in network byte order, then
// the payload. It is for wires between programs that use the same version.

var errShort = errors.New("message: too short")

var errLength = errors.New("message: payload and length field differ")

// requestSize and answerSize are what comes before the payload.
const (
	// requestSize and answerSize are the sizes without the payload.
	requestSize = 2*addressSize + 2 + 4 + 4 + 1 + 2 + 4 + 3 + 4*4 + 8 + 4 + 8 + 4 + 4 + 8 + 4 + 3*8 + 4 + 4
	answerSize  = 2*addressSize + 4 + 4 + 8 + 1 + 1 + 8 + 1 + 4 + 2 + 4 + 4 + 2
	addressSize = 8 + 16
)

// Append appends a request and its payload.
func (m *Request) Append(b []byte) []byte {
	b = m.From.append(b)
	b = m.To.append(b)
	b = append(b, m.Route.TrafficClass, m.Route.HopLimit)
	b = order.AppendUint32(b, uint32(m.Transport))
	b = order.AppendUint32(b, uint32(m.Opcode))
	b = append(b, bit(m.Solicited), bit(m.Continues), bit(m.More), bit(m.AckReq))
	b = order.AppendUint16(b, m.PKey)
	b = order.AppendUint32(b, m.MTU)
	for _, v := range []uint32{m.SourceQP, m.DestQP, m.PSN, m.Packets} {
		b = order.AppendUint32(b, v)
	}
	b = order.AppendUint64(b, m.Life)
	b = order.AppendUint32(b, m.QKey)
	b = order.AppendUint64(b, m.Key)
	b = order.AppendUint32(b, m.SRQ)
	b = order.AppendUint32(b, uint32(m.Imm))
	b = order.AppendUint64(b, m.Remote)
	b = order.AppendUint32(b, m.RKey)
	for _, v := range []uint64{m.Length, m.Operand, m.Swap} {
		b = order.AppendUint64(b, v)
	}
	b = order.AppendUint32(b, m.Placement)
	b = order.AppendUint32(b, m.Level)
	return appendSegments(b, m.Payload)
}

// Parse reads a request. Its payload refers to b.
func (m *Request) Parse(b []byte) error {
	if len(b) < requestSize {
		return errShort
	}
	r := reader{b}
	*m = Request{From: r.address(), To: r.address(), Payload: m.Payload[:0]}
	m.Route = Route{r.uint8(), r.uint8()}
	m.Transport, m.Opcode = ibv.QPType(r.uint32()), ibv.WROpcode(r.uint32())
	m.Solicited, m.Continues, m.More, m.AckReq = r.bool(), r.bool(), r.bool(), r.bool()
	m.PKey, m.MTU = r.uint16(), r.uint32()
	m.SourceQP, m.DestQP, m.PSN, m.Packets, m.Life = r.uint32(), r.uint32(), r.uint32(), r.uint32(), r.uint64()
	m.QKey, m.Key, m.SRQ, m.Imm = r.uint32(), r.uint64(), r.uint32(), ibv.BE32(r.uint32())
	m.Remote, m.RKey = r.uint64(), r.uint32()
	m.Length, m.Operand, m.Swap = r.uint64(), r.uint64(), r.uint64()
	m.Placement, m.Level = r.uint32(), r.uint32()
	m.Payload = segmentsOf(m.Payload, r.b)
	if !m.IsWhole() {
		return errLength
	}
	return nil
}

// carriesPayload reports whether Length is the length of the payload. In other requests it is the requested length.
func (m *Request) carriesPayload() bool {
	switch m.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM:
		return true
	}
	return false
}

// Append appends an answer and its data.
func (a *Answer) Append(b []byte) []byte {
	b = a.From.append(b)
	b = a.To.append(b)
	b = order.AppendUint32(b, a.DestQP)
	b = order.AppendUint32(b, a.PSN)
	b = order.AppendUint64(b, a.Life)
	b = append(b, byte(a.Syndrome), a.Timer)
	b = order.AppendUint64(b, a.Original)
	b = append(b, byte(a.Kind))
	b = order.AppendUint32(b, uint32(a.Transport))
	b = order.AppendUint16(b, a.PKey)
	b = order.AppendUint32(b, a.Count)
	b = order.AppendUint32(b, a.MTU)
	b = append(b, bit(a.Continues), bit(a.More))
	return appendSegments(b, a.Data)
}

// Parse reads an answer. Its data refers to b.
func (a *Answer) Parse(b []byte) error {
	if len(b) < answerSize {
		return errShort
	}
	r := reader{b}
	*a = Answer{From: r.address(), To: r.address(), Data: a.Data[:0]}
	a.DestQP, a.PSN, a.Life = r.uint32(), r.uint32(), r.uint64()
	a.Syndrome, a.Timer, a.Original = Syndrome(r.uint8()), r.uint8(), r.uint64()
	a.Kind, a.Transport, a.PKey, a.Count = Kind(r.uint8()), ibv.QPType(r.uint32()), r.uint16(), r.uint32()
	a.MTU, a.Continues, a.More = r.uint32(), r.bool(), r.bool()
	a.Data = segmentsOf(a.Data, r.b)
	return nil
}

var order = binary.BigEndian

func (a *Address) append(b []byte) []byte {
	return append(order.AppendUint64(b, a.Link), a.GID[:]...)
}

// appendSegments appends the contents of memory.
func appendSegments(b []byte, from []mem.Segment) []byte {
	for _, s := range from {
		if s.Length == 0 {
			continue
		}
		at := len(b)
		b = append(b, make([]byte, s.Length)...)
		mem.Move(mem.AddressOf(&b[at]), s.Base, s.Length)
	}
	return b
}

// segmentsOf returns a list with one segment for the bytes, or none if there are none.
func segmentsOf(to []mem.Segment, b []byte) []mem.Segment {
	if len(b) == 0 {
		return to
	}
	return append(to, mem.Segment{Base: mem.AddressOf(&b[0]), Length: uint64(len(b))})
}

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// reader reads fields from bytes of sufficient length.
type reader struct{ b []byte }

func (r *reader) take(n int) []byte {
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uint8() uint8   { return r.take(1)[0] }
func (r *reader) uint16() uint16 { return order.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return order.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return order.Uint64(r.take(8)) }

func (r *reader) address() Address { return Address{r.uint64(), [16]byte(r.take(16))} }

func (r *reader) bool() bool { return r.uint8() != 0 }
