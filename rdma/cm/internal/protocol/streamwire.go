// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// The protocol of stream connections. Each side has a ring that the other side writes its data into, with one write
// with immediate data for each piece; the immediate data is the number of bytes. Everything else is a control message
// into a receive: the total number of bytes that were read from the ring, and of messages that were received. From
// these the sender knows how much room the ring has and how many receives are posted.

// Hello is what the sides exchange as they connect, in private data, which has no length of its own.
type hello struct {
	ring  uint64 // address of the ring
	rkey  uint32
	size  uint32 // bytes of the ring
	depth uint16 // receives that are posted
}

const (
	helloMagic   = 0x676f7662 // "govb"
	helloVersion = 1
	helloSize    = 4 + 2 + 2 + 8 + 4 + 4
)

func (h hello) marshal() []byte {
	b := make([]byte, 0, helloSize)
	b = binary.BigEndian.AppendUint32(b, helloMagic)
	b = binary.BigEndian.AppendUint16(b, helloVersion)
	b = binary.BigEndian.AppendUint16(b, h.depth)
	b = binary.BigEndian.AppendUint64(b, h.ring)
	b = binary.BigEndian.AppendUint32(b, h.rkey)
	return binary.BigEndian.AppendUint32(b, h.size)
}

// StreamHello is a hello of a stream with a ring of that size, which is nowhere: for tests.
func StreamHello(size uint32) []byte { return hello{size: size, depth: StreamDepth}.marshal() }

// errProtocol means that the peer violates the protocol.
var errProtocol = fmt.Errorf("%w: the peer does not keep to the stream protocol", verberr.EPROTO)

var errNoStream = errors.New("cm: the peer speaks another protocol than this package's stream connections")

func parseHello(b []byte) (h hello, err error) {
	if len(b) < helloSize || binary.BigEndian.Uint32(b) != helloMagic {
		return h, errNoStream
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != helloVersion {
		return h, fmt.Errorf("cm: the peer speaks version %d of the stream protocol, and this is version %d", v,
			helloVersion)
	}
	h = hello{depth: binary.BigEndian.Uint16(b[6:]), ring: binary.BigEndian.Uint64(b[8:]),
		rkey: binary.BigEndian.Uint32(b[16:]), size: binary.BigEndian.Uint32(b[20:])}
	if h.depth < 8 || h.size < MinBuffer || h.size > MaxBuffer {
		return h, errNoStream
	}
	return h, nil
}

// control is a control message.
type control struct {
	flags   Flags
	read    uint64 // bytes taken out of the ring
	handled uint64 // messages received
}

const controlSize = 24

func (c control) marshal(b []byte) []byte {
	b = append(b[:0], byte(c.flags), 0, 0, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, c.read)
	return binary.BigEndian.AppendUint64(b, c.handled)
}

func parseControl(b []byte) control {
	return control{Flags(b[0]), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}
