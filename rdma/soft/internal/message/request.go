// SPDX-License-Identifier: BSD-2-Clause

package message

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// Request is what a requester sends to a responder: the fields of the headers that InfiniBand calls BTH, DETH, RETH,
// AtomicETH, XRCETH, ImmDt, IETH and FETH, as far as its operation has them, and the payload. Numbers are in host byte
// order where nothing else is said.
//
// A request may be a part of a message: a run of its packets. The first part has what the message's first packets have,
// with the length of the whole message where it is a write; the last part has the immediate data or the key to
// invalidate. Of others, Length is that of the part's payload.
//
// A request and its payload belong to the sender and are valid until the call that brings it returns. What keeps it
// longer keeps a Clone.
type Request struct {
	From, To Address
	Route    Route // of a datagram

	Transport ibv.QPType   // of the sender: RC, UC, UD, XRC_SEND
	Opcode    ibv.WROpcode // what is asked for
	Solicited bool         // the receiver asked to be told of it
	PKey      uint16       // partition of the sender
	SourceQP  uint32       // number of the sender
	DestQP    uint32       // number of the receiver
	PSN       uint32       // packet sequence number of the first packet, 24 bits
	Packets   uint32       // sequence numbers that the request takes, at least 1
	// A part of a message, as wires of packets bring it. Of a whole message, all four are zero.
	MTU       uint32 // bytes of payload that each packet but the last has
	Continues bool   // a part came before this one
	More      bool   // another part follows
	AckReq    bool   // the sender wants an answer now
	// tells a queue pair from what it was before a reset: no packet carries it, and 0 is unknown
	Life      uint64
	QKey      uint32        // of a datagram
	SRQ       uint32        // number of the shared receive queue, of XRC
	Imm       ibv.BE32      // immediate data, or the key to invalidate
	Remote    uint64        // address in the receiver's memory
	RKey      uint32        // key for it
	Length    uint64        // bytes of the payload, or that a read asks for; of a flush, bytes to flush
	Operand   uint64        // what an atomic adds or compares with, or what is written atomically
	Swap      uint64        // what a compare and swap stores
	Placement uint32        // of a flush, ibv.PlacementType
	Level     uint32        // of a flush, ibv.SelectivityLevel
	Payload   []mem.Segment // of a send, of a write; at most MaxSegments

	kept []byte // of a clone: where its payload lies
}

// MaxSegments is how many segments a payload or the data of an answer has at most.
const MaxSegments = 32

// Clone returns a copy that stays valid. It reads the payload.
func (m *Request) Clone() *Request {
	c := *m
	c.kept = appendSegments(nil, m.Payload)
	c.Payload = segmentsOf(nil, c.kept)
	return &c
}

// IsWhole reports whether the payload is as long as the request says, and whether it takes a sequence number at all:
// keys are checked for the one length, and the other is copied.
func (m *Request) IsWhole() bool {
	n := uint64(0)
	for i := range m.Payload {
		n += m.Payload[i].Length
	}
	if m.carriesPayload() {
		if m.More && !m.Continues && m.writes() { // Length is that of all parts
			return n <= m.Length && m.Packets > 0 && len(m.Payload) <= MaxSegments
		}
		return n == m.Length && m.Packets > 0 && len(m.Payload) <= MaxSegments
	}
	return n == 0 && m.Packets > 0
}

// writes says whether the payload goes to memory that the request names.
func (m *Request) writes() bool {
	return m.Opcode == ibv.WR_RDMA_WRITE || m.Opcode == ibv.WR_RDMA_WRITE_WITH_IMM
}

// Route has the fields of a datagram's IP header that its sender chooses, besides the addresses. The flow label of IPv6
// is 0, as on Soft-RoCE.
type Route struct {
	TrafficClass uint8
	HopLimit     uint8
}

// IsReliable says whether the sender waits for an answer.
func (m *Request) IsReliable() bool { return m.Transport != ibv.QPT_UC && m.Transport != ibv.QPT_UD }

// TakesReceive says whether the receiver has to have posted a receive.
func (m *Request) TakesReceive() bool {
	switch m.Opcode {
	case ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_SEND_WITH_INV, ibv.WR_RDMA_WRITE_WITH_IMM:
		return true
	}
	return false
}
