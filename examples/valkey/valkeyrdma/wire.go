// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"encoding/binary"
	"fmt"
)

// opcode is the type of a command, a control message of 32 bytes in network byte order.
type opcode uint16

const (
	getServerFeature   opcode = iota // request of a client; the server's reply has the same opcode
	setClientFeature                 // no features are defined yet
	keepalive                        // keeps the connection alive
	registerXferMemory               // grants memory, which the peer fills once, from the beginning
)

const commandSize = 32

// command is a control message.
type command struct {
	opcode   opcode
	selected uint16 // of getServerFeature; returned by the server
	features uint64
	place    place // of registerXferMemory
}

// place is memory that an end grants its peer.
type place struct {
	address uint64
	length  uint32
	key     uint32
}

// Offsets in a command.
const (
	atSelect   = 2
	atAddress  = 16
	atLength   = 24
	atKey      = 28
	atFeatures = 24
)

func (c command) marshal() (b [commandSize]byte) {
	binary.BigEndian.PutUint16(b[:], uint16(c.opcode))
	switch c.opcode {
	case getServerFeature, setClientFeature:
		binary.BigEndian.PutUint16(b[atSelect:], c.selected)
		binary.BigEndian.PutUint64(b[atFeatures:], c.features)
	case registerXferMemory:
		binary.BigEndian.PutUint64(b[atAddress:], c.place.address)
		binary.BigEndian.PutUint32(b[atLength:], c.place.length)
		binary.BigEndian.PutUint32(b[atKey:], c.place.key)
	}
	return b
}

// parse decodes a message of a peer, which may have any length.
func parse(b []byte) (c command, err error) {
	if len(b) != commandSize {
		return c, fmt.Errorf("%w: a command of %d bytes; want %d", ErrProtocol, len(b), commandSize)
	}
	c.opcode = opcode(binary.BigEndian.Uint16(b))
	switch c.opcode {
	case getServerFeature, setClientFeature:
		c.selected = binary.BigEndian.Uint16(b[atSelect:])
		c.features = binary.BigEndian.Uint64(b[atFeatures:])
	case keepalive:
	case registerXferMemory:
		c.place.address = binary.BigEndian.Uint64(b[atAddress:])
		c.place.length = binary.BigEndian.Uint32(b[atLength:])
		c.place.key = binary.BigEndian.Uint32(b[atKey:])
		if c.place.length == 0 || c.place.address+uint64(c.place.length) < c.place.address {
			return c, fmt.Errorf("%w: lends %d bytes of memory at %#x", ErrProtocol, c.place.length, c.place.address)
		}
	default:
		return c, fmt.Errorf("%w: unknown opcode %d", ErrProtocol, c.opcode)
	}
	return c, nil
}
