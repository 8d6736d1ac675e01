// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Request is a message from a requester to a responder: the fields of BTH, DETH, RETH, AtomicETH, XRCETH, ImmDt, IETH
// and FETH, as far as its operation has them, and the payload. Numbers are in host byte order unless noted.
//
// A request may be a part of a message: a run of its packets. The first part of a write has the length of the complete
// message; otherwise Length is the length of the part's payload. The last part has the immediate data or the key to
// invalidate.
//
// A request and its payload belong to the sender and are valid until the call that delivers it returns. To keep it
// longer, Clone it.
type Request struct {
	From, To Address
	Route    Route // UD only

	Transport ibv.QPType   // RC, UC, UD, XRC_SEND, or DRIVER: a dynamic connection
	Opcode    ibv.WROpcode // operation
	Solicited bool         // solicited event
	PKey      uint16       // sender's partition
	SourceQP  uint32       // sender
	DestQP    uint32       // receiver
	PSN       uint32       // packet sequence number of the first packet, 24 bits
	Packets   uint32       // sequence numbers that the request takes, at least 1
	// A part of a message, on wires of packets. In a complete message, all four are zero.
	MTU       uint32 // payload of each packet except the last, in bytes
	Continues bool   // not the first part
	More      bool   // not the last part
	AckReq    bool   // requests an acknowledgement
	// Life distinguishes connections of a queue pair across resets. Only packets of dynamic connections carry it; 0 is
	// unknown.
	Life      uint64
	QKey      uint32        // UD only
	Key       uint64        // dynamic connections only: access key of the target
	SRQ       uint32        // XRC only: number of the shared receive queue
	Imm       ibv.BE32      // immediate data, or the key to invalidate
	Remote    uint64        // address in the receiver's memory
	RKey      uint32        // key for it
	Length    uint64        // bytes of the payload, or to read or flush
	Operand   uint64        // atomic: value to add or compare; atomic write: value to write
	Swap      uint64        // compare and swap: value to store
	Placement uint32        // flush: ibv.PlacementType
	Level     uint32        // flush: ibv.SelectivityLevel
	Payload   []mem.Segment // send and write; at most MaxSegments

	kept []byte // payload of a clone
}

// MaxSegments is the maximum number of segments of a payload or of an answer's data.
const MaxSegments = 32

// Clone returns a copy that stays valid. It reads the payload.
func (m *Request) Clone() *Request {
	c := *m
	c.kept = appendSegments(nil, m.Payload)
	c.Payload = segmentsOf(nil, c.kept)
	return &c
}

// IsWhole reports whether the payload's length equals Length, and whether the request has at least one sequence number.
// Keys are checked for Length, and the payload is copied.
func (m *Request) IsWhole() bool {
	n := uint64(0)
	for i := range m.Payload {
		n += m.Payload[i].Length
	}
	if m.carriesPayload() {
		if m.More && !m.Continues && m.writes() { // Length covers all parts
			return n <= m.Length && m.Packets > 0 && len(m.Payload) <= MaxSegments
		}
		return n == m.Length && m.Packets > 0 && len(m.Payload) <= MaxSegments
	}
	return n == 0 && m.Packets > 0
}

// writes reports whether the payload is written to memory that the request names.
func (m *Request) writes() bool {
	return m.Opcode == ibv.WR_RDMA_WRITE || m.Opcode == ibv.WR_RDMA_WRITE_WITH_IMM
}

// Route holds the fields of a datagram's IP header that its sender chooses, except the addresses. The IPv6 flow label
// is 0, as on Soft-RoCE.
type Route struct {
	TrafficClass uint8
	HopLimit     uint8
}

// IsReliable reports whether the request is acknowledged.
func (m *Request) IsReliable() bool { return m.Transport != ibv.QPT_UC && m.Transport != ibv.QPT_UD }

// TakesReceive reports whether the request consumes a receive.
func (m *Request) TakesReceive() bool {
	switch m.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE_WITH_IMM:
		return true
	}
	return false
}
