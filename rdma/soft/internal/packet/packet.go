// SPDX-License-Identifier: BSD-2-Clause

// Package packet encodes messages as RoCE v2 packets and decodes them. A packet is the payload of a UDP datagram: BTH,
// further headers, payload, pad, and the ICRC in the last 4 bytes. Headers follow the InfiniBand specification, volume
// 1, chapter 9, and annexes 14 (XRC), 17 (RoCE v2) and 19 (FLUSH, ATOMIC WRITE).
//
// Only datagrams of the connection manager allocate.
package packet

import (
	"encoding/binary"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Port is the UDP destination port of packets.
const Port = 4791

// MaxPayload is the maximum path MTU in bytes.
const MaxPayload = 4096

// MaxSize is the size of the longest packet: the headers of a dynamic connection's write, and the payload.
const MaxSize = bthSize + dynETHSize + 16 + 4 + MaxPayload + icrcSize

const (
	bthSize  = 12
	icrcSize = 4

	cmQPN  = 1          // the connection manager's queue pair on each port
	cmQKey = 0x80010000 // its Q_Key
	cmPKey = 0xffff     // the default partition, as a full member

	number = 1<<24 - 1 // mask of queue pair and packet numbers

	// The format of adapters' dynamic connections is not public. Software devices use their own: requests have the access
	// key, the life of the connection and the number of the initiator, and answers the life.
	dynETHSize  = 8 + 8 + 4
	dynAETHSize = 8
)

// Bits of the BTH, in its second byte and in the word with the sequence number.
const (
	solicitedBit = 0x80
	padShift     = 4
	versionMask  = 0x0f
	ackBit       = 1 << 31
)

// Syndromes of the AETH. Bits 5 and 6 are the type.
const (
	syndromeAck        = 0x1f // without a credit count
	syndromeNotReady   = 0x20 // plus the RNR timer code
	syndromeOutOfOrder = 0x60
	syndromeKinds      = 0xe0
	syndromeAcks       = 0x00
	syndromeNaks       = 0x60
)

// naks maps syndromes to NAK codes.
var naks = [...]byte{
	message.OutOfOrder:      0,
	message.InvalidRequest:  1,
	message.RemoteAccess:    2,
	message.RemoteOperation: 3,
}

// Bits of the FETH.
const (
	placementMask = 0xf
	levelShift    = 4
	levelMask     = 0x3
)

// atomicSize is the operand size of an atomic or an atomic write.
const atomicSize = 8

var order = binary.BigEndian

// Output provides memory for packets, in order. Its owner writes the ICRC to the last 4 bytes with Seal.
type Output interface {
	// Packet returns n bytes, all but the last 4 of which will be written. They are not on a goroutine's stack.
	Packet(n int) []byte
}

// bth holds the fields of the base transport header.
type bth struct {
	opcode    uint8
	solicited bool
	pad       uint8
	pkey      uint16
	qpn       uint32
	ack       bool
	psn       uint32
}

func (h *bth) put(p []byte) {
	_ = p[bthSize-1]
	flags, word := h.pad<<padShift, h.psn&number
	if h.solicited {
		flags |= solicitedBit
	}
	if h.ack {
		word |= ackBit
	}
	p[0], p[1] = h.opcode, flags
	order.PutUint16(p[2:], h.pkey)
	order.PutUint32(p[4:], h.qpn&number)
	order.PutUint32(p[8:], word)
}

// cursor reads a list of segments sequentially.
type cursor struct {
	list []mem.Segment
	read uint64 // bytes read of the first segment
}

// fill copies the next len(b) bytes.
func (c *cursor) fill(b []byte) {
	for len(b) > 0 {
		s := c.list[0]
		s.Skip(c.read)
		n := min(s.Length, uint64(len(b)))
		if n > 0 {
			mem.Move(mem.AddressOf(&b[0]), s.Base, n)
			b = b[n:]
		}
		c.read += n
		if n == s.Length {
			c.list, c.read = c.list[1:], 0
		}
	}
}

// lengthOf returns the total length of a list of segments.
func lengthOf(list []mem.Segment) uint64 {
	n := uint64(0)
	for i := range list {
		n += list[i].Length
	}
	return n
}

// packets splits a payload into packets.
type packets struct {
	from   cursor
	left   uint64 // bytes
	mtu    uint64
	psn    uint32
	begun  bool // the message has earlier packets
	onward bool // the message has later packets
}

func cut(list []mem.Segment, mtu uint32, psn uint32, continues, more bool) packets {
	c := packets{from: cursor{list: list}, left: lengthOf(list), mtu: uint64(mtu), psn: psn, begun: continues,
		onward: more}
	if mtu == 0 {
		c.mtu = c.left
	}
	return c
}

// next returns the next packet's payload size, its part of the message, and whether it is the last of this payload.
func (c *packets) next() (n int, part part, last bool) {
	k := min(c.left, c.mtu)
	c.left -= k
	last = c.left == 0
	part = partOf(c.begun, !last || c.onward)
	c.begun = true
	return int(k), part, last
}

// write writes a packet's payload and pad at the end of the packet.
func (c *packets) write(p []byte, n int) {
	pad := padOf(n)
	at := len(p) - icrcSize - pad - n
	c.from.fill(p[at : at+n])
	clear(p[at+n : at+n+pad])
	c.psn++
}

// padOf returns the number of pad bytes after n bytes of payload.
func padOf(n int) int { return -n & 3 }

// reliable reports whether a transport has acknowledgements.
func reliable(t ibv.QPType) bool {
	return t == ibv.QPT_RC || t == ibv.QPT_XRC_SEND || t == ibv.QPT_DRIVER
}
