// SPDX-License-Identifier: BSD-2-Clause

package packet

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Endpoint is an IP address and a UDP port.
type Endpoint struct {
	GID  [16]byte // an IPv6 or IPv4-mapped address, in network byte order
	Port uint16
}

// is4 reports whether the address is an IPv4 address.
func (e *Endpoint) is4() bool {
	return binary.BigEndian.Uint64(e.GID[:]) == 0 && binary.BigEndian.Uint32(e.GID[8:]) == 0xffff
}

// Sizes of the headers before a packet, and offsets in the IPv4 header.
const (
	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
	idAt     = 4
)

// HeadersSize is the maximum size of PutHeaders' result.
const HeadersSize = ipv6Size + udpSize

// Headers returns the size of the IP and UDP headers before a packet to or from an endpoint.
func (e *Endpoint) Headers() int {
	if e.is4() {
		return ipv4Size + udpSize
	}
	return ipv6Size + udpSize
}

// PutHeaders writes the IP and UDP headers of a packet of n bytes, and returns their size. They are IPv4 headers if
// both addresses are, unfragmented and with the Identification id. Fields that change on the way have usual values;
// checksums are 0.
func PutHeaders(b *[HeadersSize]byte, from, to *Endpoint, id uint16, n int) int {
	const udp, ttl = 17, 64
	clear(b[:])
	size := ipv6Size
	if from.is4() && to.is4() {
		size = ipv4Size
		b[0] = 4<<4 | ipv4Size/4
		order.PutUint16(b[2:], uint16(ipv4Size+udpSize+n))
		order.PutUint16(b[idAt:], id)
		order.PutUint16(b[6:], 1<<14) // do not fragment
		b[8], b[9] = ttl, udp
		copy(b[12:], from.GID[12:])
		copy(b[16:], to.GID[12:])
	} else {
		b[0] = 6 << 4
		order.PutUint16(b[4:], uint16(udpSize+n))
		b[6], b[7] = udp, ttl
		copy(b[8:], from.GID[:])
		copy(b[24:], to.GID[:])
	}
	order.PutUint16(b[size:], from.Port)
	order.PutUint16(b[size+2:], to.Port)
	order.PutUint16(b[size+4:], uint16(udpSize+n))
	return size + udpSize
}

// Seal writes the ICRC to the last 4 bytes of a packet. Over IPv4 it covers the Identification that the packet will
// have, and the don't-fragment bit.
func Seal(p []byte, from, to *Endpoint, id uint16) {
	end := len(p) - icrcSize
	binary.LittleEndian.PutUint32(p[end:], icrc(p, from, to, id, isFlush(p)))
}

// isFlush reports whether the ICRC covers the packet twice. Soft-RoCE of Linux 6.12 to 7.2, the only other
// implementation of FLUSH, treats the packet as its payload and appends its bytes, unmasked, after the headers.
func isFlush(p []byte) bool { return p[0] == ibv.OPCODE_RC|flush }

// Check reports whether the ICRC of a packet is right. Over IPv4 it covers the Identification, which sockets do not
// report. Check first tries id; if that does not match, it computes the Identification that would, which leaves 16 of
// the 32 bits as a check. It returns the Identification, for the next packet of the sender. For FLUSH it accepts both
// Soft-RoCE's ICRC and the specification's.
func Check(p []byte, from, to *Endpoint, id uint16) (uint16, bool) {
	if !HasSize(p) {
		return id, false
	}
	if isFlush(p) {
		if got, ok := check(p, from, to, id, true); ok {
			return got, true
		}
	}
	return check(p, from, to, id, false)
}

// HasSize reports whether a packet has a valid size.
func HasSize(p []byte) bool { return len(p) >= bthSize+icrcSize && len(p)%4 == 0 && len(p) <= MaxSize }

// check is Check for a packet that the ICRC covers once or twice.
func check(p []byte, from, to *Endpoint, id uint16, twice bool) (uint16, bool) {
	wrong := icrc(p, from, to, id, twice) ^ binary.LittleEndian.Uint32(p[len(p)-icrcSize:])
	if wrong == 0 {
		return id, true
	}
	if !from.is4() || !to.is4() {
		return id, false
	}
	// The CRC is linear: the difference is that of the wrong Identification bits, shifted by all following bytes.
	follows := ipv4Size - idAt + udpSize + len(p) - icrcSize
	if twice {
		follows += len(p) - icrcSize
	}
	bits := rewind(wrong, follows/4)
	if bits>>16 != 0 {
		return id, false
	}
	return id ^ uint16(bits>>8) ^ uint16(bits<<8), true
}

// icrc returns the ICRC of a packet: a CRC-32 of 8 bytes of ones, the IP and UDP headers and the packet, with all
// fields that may change on the way replaced by ones.
func icrc(p []byte, from, to *Endpoint, id uint16, twice bool) uint32 {
	var b [HeadersSize]byte
	size := PutHeaders(&b, from, to, id, len(p))
	if size == ipv4Size+udpSize {
		b[1] = 0xff               // type of service
		b[8] = 0xff               // time to live
		b[10], b[11] = 0xff, 0xff // checksum
	} else {
		b[0], b[1], b[2], b[3] = 6<<4|0xf, 0xff, 0xff, 0xff // traffic class, flow label
		b[7] = 0xff                                         // hop limit
	}
	b[size-2], b[size-1] = 0xff, 0xff // checksum of UDP
	crc := short(afterOnes, b[:size])
	var h [bthSize]byte
	copy(h[:], p)
	h[4] = 0xff // FECN, BECN, reserved
	crc = short(crc, h[:])
	crc = crc32.Update(^crc, crc32.IEEETable, p[bthSize:len(p)-icrcSize])
	if twice {
		crc = crc32.Update(crc, crc32.IEEETable, p[:len(p)-icrcSize])
	}
	return crc
}
