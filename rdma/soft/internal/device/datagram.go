// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// grhSize is the size of the header before the data of every datagram: an IPv6 header, or an IPv4 header in its last 20
// bytes.
const grhSize = 40

const (
	ipv4At       = 20
	ipv4Size     = grhSize - ipv4At
	dontFragment = 1 << 14
	protoUDP     = 17

	// bytes of a datagram's packet besides the IP header: UDP, BTH, DETH and ICRC, and of immediate data
	datagramHeaders = 8 + 12 + 8 + 4
	immediateSize   = 4

	// hopLimit is that of paths to one device, which the kernel chooses for RoCE when it resolves the address. To
	// groups, it is the program's.
	hopLimit = 64
)

// isIPv4 reports whether a GID is an address of IPv4.
func isIPv4(gid [16]byte) bool { return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff} }

// grhOf is the header of a datagram, as it was in its packet. Packets of IPv4 have the Identification 0.
func grhOf(m *message.Request) (h [grhSize]byte) {
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

// checksum is the sum of the 16-bit words of a header, as the internet's checksums want it.
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

// readGRH returns the source and destination of a datagram. An IPv4 header may lack its checksum, unless the bytes
// before it could start an IPv6 header.
func readGRH(h *[grhSize]byte) (route ibv.GlobalRoute, own [16]byte, errno runtime.Errno) {
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

// back is the path back to the sender of a datagram.
func (d *device) back(wc *ibv.WC, grh ibv.Ptr[[grhSize]byte]) (attr ibv.AHAttr, errno runtime.Errno) {
	attr.PortNum, attr.SL, attr.DLID, attr.SrcPathBits = portNum, wc.SL, wc.SLID, wc.DLIDPathBits
	if wc.WCFlags&ibv.WC_GRH == 0 {
		return attr, 0
	}
	if grh == 0 {
		return attr, syscall.EINVAL
	}
	route, own, errno := readGRH(grh.Deref())
	if errno != 0 {
		return attr, errno
	}
	index := slices.Index(d.gids, own)
	if index < 0 {
		return attr, syscall.EINVAL
	}
	route.SGIDIndex = uint8(index)
	attr.IsGlobal, attr.GRH = 1, route
	return attr, 0
}

// initAH is ibv_init_ah_from_wc.
func initAH(of ibv.Ptr[ibv.Context], port uint8, wc ibv.Ptr[ibv.WC], grh ibv.Ptr[[grhSize]byte],
	to ibv.Ptr[ibv.AHAttr]) runtime.Errno {
	c := find[context](of)
	if c == nil || port != portNum || wc == 0 || to == 0 {
		return syscall.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().mu.Unlock()
	attr, errno := c.device.back(wc.Deref(), grh)
	if errno != 0 {
		return errno
	}
	*to.Deref() = attr
	return 0
}

func createAHFromWC(of ibv.Ptr[ibv.PD], wc ibv.Ptr[ibv.WC], grh ibv.Ptr[[grhSize]byte], port uint8) (uint64,
	runtime.Errno) {
	if wc == 0 || port != portNum {
		return 0, syscall.EINVAL
	}
	p := locked[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().unlock()
	attr, errno := p.device.back(wc.Deref(), grh)
	if errno != 0 {
		return 0, errno
	}
	return p.newAH(&attr)
}

// carry places a datagram in a receive, behind the header with its addresses. Anyone can send one, so that none can
// break the queue pair: a datagram that is longer than its receive is dropped, and the receive stays for the next one.
// In a shared receive queue, where that would block other queue pairs, the receive completes in error. The caller holds
// Fabric.mu.
func (q *qp) carry(m *message.Request) *message.Answer {
	f := q.fabric()
	if !q.receives() {
		q.count(counters.WrongState)
		return nil
	}
	if !q.inPartition(m.PKey) {
		return nil
	}
	if m.QKey != q.attr.QKey {
		q.count(counters.BadQKey)
		return nil
	}
	recvs, s, _ := q.recvQueueOf(m)
	if recvs == nil {
		return nil
	}
	q.receiver.Expects = (m.PSN + 1) & psnMask
	id, sges := recvs.First()
	status := ibv.WC_REM_INV_REQ_ERR
	if m.Length+grhSize <= total(sges) {
		f.header = grhOf(m)
		copy(f.framed[1:], m.Payload)
		f.framed[0] = segment{Base: addressOf(&f.header[0]), Length: grhSize}
		status = q.place(recvs.Domain, sges, f.framed[:1+len(m.Payload)], m.Length+grhSize)
	} else if q.count(counters.TooLong); s == nil {
		return nil
	}
	take(recvs, s)
	c := q.completes(s)
	e := c.nextOf(recvs, recvs.Taken)
	e.wc = ibv.WC{
		WRID: id, Status: status, Opcode: ibv.WC_RECV, ByteLen: uint32(m.Length) + grhSize, QPNum: q.number,
		SrcQP: m.SourceQP, WCFlags: ibv.WC_GRH,
		PKeyIndex: q.attr.PKeyIndex,
	}
	describeSend(m, e)
	c.publish(e, m.Solicited)
	switch status {
	case ibv.WC_SUCCESS:
		q.count(counters.Receives)
	case ibv.WC_LOC_PROT_ERR:
		q.setState(ibv.QPS_ERR)
	}
	return nil
}
