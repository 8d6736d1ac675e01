// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Message formats of rsockets. Private data contains the location of the side's list of targets, the first target, and
// the number of credits. Every later message is a write with immediate data, whose upper three bits are the message's
// type.

// rsocketHello is the private data. It is encoded in big-endian order.
type rsocketHello struct {
	bigEndian bool   // byte order of the sender, and of the entries in its list
	credits   uint16 // number of data messages that the peer may send
	maps      int    // number of entries for mappings, after the list's targets
	list      target // its length is the number of entries
	data      target // the first target
}

const (
	rsocketVersion   = 1
	rsocketHelloSize = 40
	helloBigEndian   = 1 // flag
	helloMaps        = 2 // flag: the number of maps is valid
	targetSize       = 16
	targetEntries    = 2
	mappedSize       = 8 + targetSize
	maxMaps          = 127 // larger numbers are sent in units of 256
)

// Message types: the upper bits of immediate data.
const (
	opData    = 0 // the value is the number of bytes written
	opSGL     = 4 // the value is the total number of messages that the peer may send; may also write a target
	opMap     = 6 // a mapping's entry was written
	opControl = 7
	opShift   = 29
)

// Control messages.
const (
	controlDisconnect = 0
	controlKeepalive  = 1
	controlShutdown   = 2
)

func word(op, value uint32) ibv.BE32 { return ibv.ToBE32(op<<opShift | value) }

// errRSocket reports a violation of the protocol by the peer.
var errRSocket = fmt.Errorf("%w: the peer violates the rsockets protocol", syscall.EPROTO)

var errNoRSocket = errors.New("stream: the peer does not use the rsockets protocol")

func (h rsocketHello) marshal() []byte {
	b := make([]byte, 8, rsocketHelloSize)
	b[0] = rsocketVersion
	b[1] = helloMaps
	if h.bigEndian {
		b[1] |= helloBigEndian
	}
	binary.BigEndian.PutUint16(b[2:], h.credits)
	b[7] = byte(h.maps)
	b = append(b, h.list.marshal(binary.BigEndian)...)
	return append(b, h.data.marshal(binary.BigEndian)...)
}

// parseRSocketHello parses private data. It rejects peers that lack a feature that streams need.
func parseRSocketHello(b []byte) (h rsocketHello, err error) {
	if len(b) < rsocketHelloSize || b[0] != rsocketVersion {
		return h, errNoRSocket
	}
	maps := int(b[7])
	if maps > maxMaps {
		maps = maps & maxMaps << 8
	}
	if b[1]&helloMaps == 0 {
		maps = 0
	}
	h = rsocketHello{b[1]&helloBigEndian != 0, binary.BigEndian.Uint16(b[2:]), maps, targetOf(b[8:], binary.BigEndian),
		targetOf(b[24:], binary.BigEndian)}
	if h.credits == 0 || h.list.length < targetEntries {
		return h, errNoRSocket
	}
	return h, nil
}

// order returns the byte order of the peer's list.
func (h *rsocketHello) order() byteOrder {
	if h.bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// mapped is a mapping: the peer's memory that starts at an offset.
type mapped struct {
	offset uint64
	target
}

func (m mapped) marshal(order byteOrder) []byte {
	return append(order.AppendUint64(make([]byte, 0, mappedSize), m.offset), m.target.marshal(order)...)
}

// parseMapped reads an entry of this side's list.
func parseMapped(b []byte) mapped { return mapped{binary.NativeEndian.Uint64(b), parseTarget(b[8:])} }

type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

func (t target) marshal(order byteOrder) []byte {
	b := order.AppendUint64(make([]byte, 0, targetSize), t.address)
	b = order.AppendUint32(b, t.key)
	return order.AppendUint32(b, t.length)
}

func targetOf(b []byte, order byteOrder) target {
	return target{order.Uint64(b), order.Uint32(b[8:]), order.Uint32(b[12:])}
}

// parseTarget reads an entry of this side's list.
func parseTarget(b []byte) target { return targetOf(b, binary.NativeEndian) }
