// SPDX-License-Identifier: BSD-2-Clause

// Package pcap writes packets in the classic format of libpcap, which Wireshark and tcpdump read, with timestamps in
// nanoseconds, and starting with the IP header (LINKTYPE_RAW).
package pcap

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

const (
	magic   = 0xa1b23c4d // timestamps in nanoseconds
	major   = 2
	minor   = 4
	header  = 16      // size of a packet record's header
	snapLen = 1 << 17 // maximum packet length
	linkRaw = 101
)

// appendHeader appends the file header.
func appendHeader(b []byte) []byte {
	b = order.AppendUint32(b, magic)
	b = order.AppendUint16(b, major)
	b = order.AppendUint16(b, minor)
	b = order.AppendUint64(b, 0) // time zone and accuracy are always 0
	b = order.AppendUint32(b, snapLen)
	return order.AppendUint32(b, linkRaw)
}

// appendPacket appends a packet, which begins with its BTH. Its IP and UDP headers are made up: fields that sockets do
// not report have usual values.
func appendPacket(b []byte, at time.Time, p []byte, from, to *packet.Endpoint, id uint16) []byte {
	var h [packet.HeadersSize]byte
	n := packet.PutHeaders(&h, from, to, id, len(p))
	sum(h[:n], p)
	length := uint32(n + len(p))
	b = order.AppendUint32(b, uint32(at.Unix()))
	b = order.AppendUint32(b, uint32(at.Nanosecond()))
	b = order.AppendUint32(b, length)
	b = order.AppendUint32(b, length)
	return append(append(b, h[:n]...), p...)
}

// order is the byte order of the file, which readers detect from the magic number.
var order = binary.LittleEndian

// Offsets in the headers.
const (
	ipv4Size     = 20
	ipv4Checksum = 10
	ipv6Size     = 40
	ipv6Source   = 8
	udpLength    = 4
	udpChecksum  = 6
	udp          = 17
)

// sum sets the required checksum: that of the IPv4 header, or the UDP checksum over IPv6.
func sum(h, p []byte) {
	net := binary.BigEndian
	if h[0]>>4 == 4 {
		net.PutUint16(h[ipv4Checksum:], ^fold(add(0, h[:ipv4Size])))
		return
	}
	u := h[ipv6Size:]
	s := add(add(add(udp, h[ipv6Source:ipv6Size]), u[udpLength:udpLength+2]), u)
	v := ^fold(add(s, p))
	if v == 0 { // 0 would mean no checksum
		v = 0xffff
	}
	net.PutUint16(u[udpChecksum:], v)
}

// add sums 16-bit words, two at a time, which fold to the same sum. A last odd byte is the high byte of a word.
func add(s uint64, b []byte) uint64 {
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
