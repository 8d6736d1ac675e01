// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// GRHSize is the size of the header before the data of every datagram: an IPv6 header, or an IPv4 header in its last 20
// bytes.
const GRHSize = 40

const (
	ipv4At       = 20
	ipv4Size     = GRHSize - ipv4At
	dontFragment = 1 << 14
	protoUDP     = 17

	// bytes of a datagram's packet besides the IP header: UDP, BTH, DETH and ICRC, and of immediate data
	datagramHeaders = 8 + 12 + 8 + 4
	immediateSize   = 4
)

// grhOf returns the header of a datagram as it was in its packet. The Identification of IPv4 packets is 0.
func grhOf(m *message.Request) (h [GRHSize]byte) {
	route, from, to := &m.Route, &m.From.GID, &m.To.GID
	length := datagramHeaders + (uint16(m.Length)+3)&^3
	if m.Opcode == ibv.WR_SEND_WITH_IMM {
		length += immediateSize
	}
	if !isIPv4(*from) || !isIPv4(*to) {
		binary.BigEndian.PutUint32(h[0:], 6<<28|uint32(route.TrafficClass)<<20)
		binary.BigEndian.PutUint16(h[4:], length)
		h[6], h[7] = protoUDP, route.HopLimit
		copy(h[8:], from[:])
		copy(h[24:], to[:])
		return h
	}
	ip := h[ipv4At:]
	ip[0], ip[1] = 4<<4|ipv4Size/4, route.TrafficClass
	binary.BigEndian.PutUint16(ip[2:], ipv4Size+length)
	binary.BigEndian.PutUint16(ip[6:], dontFragment)
	ip[8], ip[9] = route.HopLimit, protoUDP
	copy(ip[12:], from[12:])
	copy(ip[16:], to[12:])
	binary.BigEndian.PutUint16(ip[10:], ^checksum(ip))
	return h
}

// checksum returns the Internet checksum of a header.
func checksum(b []byte) uint16 {
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// ReadGRH returns the source and destination of a datagram. An IPv4 header may lack its checksum, unless the bytes
// before it could start an IPv6 header.
func ReadGRH(h *[GRHSize]byte) (route ibv.GlobalRoute, own [16]byte, errno runtime.Errno) {
	if ip := h[ipv4At:]; ip[0] == 4<<4|ipv4Size/4 && (h[0]>>4 != 6 || checksum(ip) == 0xffff) {
		from := [16]byte{10: 0xff, 11: 0xff}
		own = from
		copy(from[12:], ip[12:16])
		copy(own[12:], ip[16:])
		*route.DGID.Raw() = from
		route.TrafficClass, route.HopLimit = ip[1], 0xff
		return route, own, 0
	}
	if h[0]>>4 != 6 {
		return route, own, syscall.EPROTONOSUPPORT
	}
	flow := binary.BigEndian.Uint32(h[:])
	*route.DGID.Raw() = [16]byte(h[8:24])
	route.FlowLabel, route.TrafficClass, route.HopLimit = flow&ibv.IB_GRH_FLOWLABEL_MASK, uint8(flow>>20), 0xff
	return route, [16]byte(h[24:]), 0
}

// isIPv4 reports whether a GID is an IPv4 address.
func isIPv4(gid [16]byte) bool { return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff} }
