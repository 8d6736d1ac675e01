// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

// Each side of a stream has a ring that the other side writes data into: a write with immediate data for each piece,
// whose immediate data is the number of bytes. On iWARP, which lacks immediate data, the number follows the write in a
// message of 4 bytes, and the side that accepted sends nothing before the other side's first message. All other messages
// are control messages into a receive. They contain the total number of bytes read from the ring and of messages
// handled, from which the sender computes the room in the ring and the number of posted receives.
//
// A control message may also offer a piece of data by address, key and length. The other side fetches it: it reads the
// piece into the place in its ring where it would have been written, one offer after the other, and reports in its
// control messages how many it has fetched. Messages and data after an offer take effect once the offer has been
// fetched. Offers are sent only to a side that has announced fetching in its hello, which requires that the
// connection's parameters allow one RDMA READ on each side.

// hello is the message that each side sends as private data when it connects. Private data has no length.
type hello struct {
	ring  uint64 // address of the ring
	rkey  uint32
	size  uint32 // bytes of the ring
	depth uint16 // number of posted receives

	fetches bool // fetches offers; earlier versions do not announce this
}

const (
	helloMagic   = 0x676f7662 // "govb"
	helloVersion = 1
	helloSize    = 4 + 2 + 2 + 8 + 4 + 4 // of the first versions; a byte of flags may follow
	helloFetches = 1                     // flag
)

func (h hello) marshal() []byte {
	b := make([]byte, 0, helloSize+1)
	b = binary.BigEndian.AppendUint32(b, helloMagic)
	b = binary.BigEndian.AppendUint16(b, helloVersion)
	b = binary.BigEndian.AppendUint16(b, h.depth)
	b = binary.BigEndian.AppendUint64(b, h.ring)
	b = binary.BigEndian.AppendUint32(b, h.rkey)
	b = binary.BigEndian.AppendUint32(b, h.size)
	if !h.fetches {
		return b
	}
	return append(b, helloFetches)
}

// StreamHello returns a hello for tests: a stream with a ring of that size, but no memory.
func StreamHello(size uint32) []byte { return hello{size: size, depth: StreamDepth}.marshal() }

// errProtocol means that the peer violates the protocol.
var errProtocol = fmt.Errorf("%w: the peer violates the stream protocol", syscall.EPROTO)

var errNoStream = errors.New("stream: the peer does not use the stream protocol of this package")

func parseHello(b []byte) (h hello, err error) {
	if len(b) < helloSize || binary.BigEndian.Uint32(b) != helloMagic {
		return h, errNoStream
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != helloVersion {
		return h, fmt.Errorf("stream: the peer uses version %d of the stream protocol, this end version %d", v,
			helloVersion)
	}
	h = hello{depth: binary.BigEndian.Uint16(b[6:]), ring: binary.BigEndian.Uint64(b[8:]),
		rkey: binary.BigEndian.Uint32(b[16:]), size: binary.BigEndian.Uint32(b[20:])}
	if len(b) > helloSize {
		h.fetches = b[helloSize]&helloFetches != 0
	}
	if h.depth < 8 || h.size < MinBuffer || h.size > MaxBuffer {
		return h, errNoStream
	}
	return h, nil
}

// control is a control message.
type control struct {
	flags   Flags
	fetched uint32 // number of offers
	read    uint64 // bytes read from the ring
	handled uint64 // messages handled
	offer   *span  // or nil
}

const (
	controlSize = 24
	offerSize   = controlSize + 8 + 4 + 4 // of a message with an offer
	offerFlag   = Flags(1 << 2)           // in a message with an offer
)

func (c control) marshal(b []byte) []byte {
	b = append(b[:0], byte(c.flags), 0, 0, 0)
	if c.offer != nil {
		b[0] |= byte(offerFlag)
	}
	b = binary.BigEndian.AppendUint32(b, c.fetched)
	b = binary.BigEndian.AppendUint64(b, c.read)
	b = binary.BigEndian.AppendUint64(b, c.handled)
	if c.offer == nil {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, c.offer.address)
	b = binary.BigEndian.AppendUint32(b, c.offer.rkey)
	return binary.BigEndian.AppendUint32(b, c.offer.n)
}

func parseControl(b []byte) control {
	return control{flags: Flags(b[0]), fetched: binary.BigEndian.Uint32(b[4:]), read: binary.BigEndian.Uint64(b[8:]),
		handled: binary.BigEndian.Uint64(b[16:])}
}

func parseOffer(b []byte) span {
	return span{address: binary.BigEndian.Uint64(b[controlSize:]), rkey: binary.BigEndian.Uint32(b[controlSize+8:]),
		n: binary.BigEndian.Uint32(b[controlSize+12:])}
}
