// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Opcodes missing from infiniband/opcode.h: the XRC transport, which shares RC's operations, newer operations, and the
// congestion notification. Dynamic connections use opcodes that are reserved for manufacturers.
const (
	opcodeXRC                = 0xa0
	opcodeDynamic            = 0xc0 // see dynETH
	sendLastWithInvalidate   = 0x16
	sendOnlyWithInvalidate   = 0x17
	flush                    = 0x1c
	atomicWrite              = 0x1d
	congestionNotification   = 0x81
	congestionNotificationOf = 16 // reserved bytes after its BTH
)

// part is the position of a packet in its message.
type part uint8

const (
	last   part = 1 << iota // not the first packet; alone, it is the last
	first                   // not the last packet; alone, it is the first
	only   part = 0
	middle      = last | first
)

func partOf(continues, more bool) part {
	p := only
	if continues {
		p |= last
	}
	if more {
		p |= first
	}
	return p
}

func (p part) continues() bool { return p&last != 0 }
func (p part) more() bool      { return p&first != 0 }

// headers is the set of headers after the BTH, in their order.
type headers uint16

const (
	xrceth headers = 1 << iota
	deth
	feth
	reth
	atomicETH
	aeth
	atomicAckETH
	immDt
	ieth
	payload   // of any size
	operand   // a payload of 8 bytes, to write atomically
	alwaysAck // no header: answered regardless of the BTH's AckReq bit
	dynETH    // right after the BTH; see dynETHSize
	dynAETH   // right after the BTH; see dynETHSize
)

var headerSizes = map[headers]int{xrceth: 4, deth: 8, feth: 4, reth: 16, atomicETH: 28, aeth: 4, atomicAckETH: 8,
	immDt: 4, ieth: 4, operand: atomicSize, dynETH: dynETHSize, dynAETH: dynAETHSize}

// shape is the format of an opcode's packets.
type shape struct {
	kind      Kind
	transport ibv.QPType
	opcode    ibv.WROpcode // requests only
	answer    message.Kind
	part      part
	headers   headers
	size      int // of all headers, including the BTH, and of an operand
}

func (s *shape) has(h headers) bool { return s.headers&h != 0 }

// operation is a row of the table of operations. The low 5 bits of opcodes are the operation's number.
type operation struct {
	number  uint8
	opcode  ibv.WROpcode
	part    part
	headers headers
}

var operations = []operation{
	{ibv.OPCODE_SEND_FIRST, ibv.WR_SEND, first, payload},
	{ibv.OPCODE_SEND_MIDDLE, ibv.WR_SEND, middle, payload},
	{ibv.OPCODE_SEND_LAST, ibv.WR_SEND, last, payload},
	{ibv.OPCODE_SEND_LAST_WITH_IMMEDIATE, ibv.WR_SEND_WITH_IMM, last, immDt | payload},
	{ibv.OPCODE_SEND_ONLY, ibv.WR_SEND, only, payload},
	{ibv.OPCODE_SEND_ONLY_WITH_IMMEDIATE, ibv.WR_SEND_WITH_IMM, only, immDt | payload},
	{sendLastWithInvalidate, ibv.WR_SEND_WITH_INV, last, ieth | payload},
	{sendOnlyWithInvalidate, ibv.WR_SEND_WITH_INV, only, ieth | payload},
	{ibv.OPCODE_RDMA_WRITE_FIRST, ibv.WR_RDMA_WRITE, first, reth | payload},
	{ibv.OPCODE_RDMA_WRITE_MIDDLE, ibv.WR_RDMA_WRITE, middle, payload},
	{ibv.OPCODE_RDMA_WRITE_LAST, ibv.WR_RDMA_WRITE, last, payload},
	{ibv.OPCODE_RDMA_WRITE_LAST_WITH_IMMEDIATE, ibv.WR_RDMA_WRITE_WITH_IMM, last, immDt | payload},
	{ibv.OPCODE_RDMA_WRITE_ONLY, ibv.WR_RDMA_WRITE, only, reth | payload},
	{ibv.OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE, ibv.WR_RDMA_WRITE_WITH_IMM, only, reth | immDt | payload},
}

// reliableOperations have a response of their own type.
var reliableOperations = []operation{
	{ibv.OPCODE_RDMA_READ_REQUEST, ibv.WR_RDMA_READ, only, reth | alwaysAck},
	{ibv.OPCODE_COMPARE_SWAP, ibv.WR_ATOMIC_CMP_AND_SWP, only, atomicETH | alwaysAck},
	{ibv.OPCODE_FETCH_ADD, ibv.WR_ATOMIC_FETCH_AND_ADD, only, atomicETH | alwaysAck},
	{flush, ibv.WR_FLUSH, only, feth | reth | alwaysAck},
	{atomicWrite, ibv.WR_ATOMIC_WRITE, only, reth | operand | alwaysAck},
}

var answers = []struct {
	number  uint8
	kind    message.Kind
	part    part
	headers headers
}{
	{ibv.OPCODE_RDMA_READ_RESPONSE_FIRST, message.ReadData, first, aeth | payload},
	{ibv.OPCODE_RDMA_READ_RESPONSE_MIDDLE, message.ReadData, middle, payload},
	{ibv.OPCODE_RDMA_READ_RESPONSE_LAST, message.ReadData, last, aeth | payload},
	{ibv.OPCODE_RDMA_READ_RESPONSE_ONLY, message.ReadData, only, aeth | payload},
	{ibv.OPCODE_ACKNOWLEDGE, message.Plain, only, aeth},
	{ibv.OPCODE_ATOMIC_ACKNOWLEDGE, message.AtomicData, only, aeth | atomicAckETH},
}

// transports lists the transports. The high 3 bits of opcodes are the transport's number.
var transports = []struct {
	transport ibv.QPType
	base      uint8
	headers   headers // in every request
	answers   headers // in every answer
}{
	{ibv.QPT_RC, ibv.OPCODE_RC, 0, 0},
	{ibv.QPT_UC, ibv.OPCODE_UC, 0, 0},
	{ibv.QPT_UD, ibv.OPCODE_UD, deth, 0},
	{ibv.QPT_XRC_SEND, opcodeXRC, xrceth, 0},
	{ibv.QPT_DRIVER, opcodeDynamic, dynETH, dynAETH},
}

// shapes maps opcodes to shapes. Unknown opcodes have the kind Refused.
var shapes = shapesOf()

func shapesOf() (all [256]shape) {
	add := func(code uint8, s shape) {
		s.size = bthSize
		for h, n := range headerSizes {
			if s.has(h) {
				s.size += n
			}
		}
		all[code] = s
	}
	for _, t := range transports {
		of := operations
		if reliable(t.transport) {
			of = append(of[:len(of):len(of)], reliableOperations...)
			for _, a := range answers {
				add(t.base|a.number, shape{kind: Answer, transport: t.transport, answer: a.kind, part: a.part,
					headers: a.headers | t.answers})
			}
		}
		for _, o := range of {
			if t.transport == ibv.QPT_UD && (o.part != only || o.opcode != ibv.WR_SEND && o.opcode !=
				ibv.WR_SEND_WITH_IMM) {
				continue
			}
			add(t.base|o.number, shape{kind: Request, transport: t.transport, opcode: o.opcode, part: o.part,
				headers: o.headers | t.headers})
		}
	}
	all[congestionNotification] = shape{kind: Notification, size: bthSize + congestionNotificationOf}
	return all
}

// codes are the numbers of operations, by work request opcode and part of the message.
var codes = codesOf()

func codesOf() (all [ibv.WR_ATOMIC_WRITE + 1][4]uint8) {
	for _, of := range [][]operation{operations, reliableOperations} {
		for _, o := range of {
			all[o.opcode][o.part] = o.number
		}
	}
	for _, op := range []struct{ of, as ibv.WROpcode }{ // all packets except the last are the same
		{ibv.WR_SEND_WITH_IMM, ibv.WR_SEND}, {ibv.WR_SEND_WITH_INV, ibv.WR_SEND},
		{ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_RDMA_WRITE},
	} {
		all[op.of][first], all[op.of][middle] = all[op.as][first], all[op.as][middle]
	}
	return all
}

// requestCode returns the opcode of a request's packet.
func requestCode(t ibv.QPType, op ibv.WROpcode, p part) uint8 {
	for i := range transports {
		if transports[i].transport != t || int(op) >= len(codes) {
			continue
		}
		code := transports[i].base | codes[op][p]
		if s := &shapes[code]; s.kind == Request && s.part == p {
			return code
		}
	}
	panic(fmt.Sprintf("packet: transport %v does not support %v, part %d", t, op, p))
}

// answerCode returns the opcode of an answer's packet.
func answerCode(t ibv.QPType, k message.Kind, p part) uint8 {
	code := uint8(ibv.OPCODE_RC)
	switch t {
	case ibv.QPT_XRC_SEND:
		code = opcodeXRC
	case ibv.QPT_DRIVER:
		code = opcodeDynamic
	}
	switch {
	case k == message.Plain:
		return code | ibv.OPCODE_ACKNOWLEDGE
	case k == message.AtomicData:
		return code | ibv.OPCODE_ATOMIC_ACKNOWLEDGE
	}
	return code | [...]uint8{
		only:   ibv.OPCODE_RDMA_READ_RESPONSE_ONLY,
		last:   ibv.OPCODE_RDMA_READ_RESPONSE_LAST,
		first:  ibv.OPCODE_RDMA_READ_RESPONSE_FIRST,
		middle: ibv.OPCODE_RDMA_READ_RESPONSE_MIDDLE,
	}[p]
}
