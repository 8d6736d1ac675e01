// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/runtime"
)

// A GRH area of 40 bytes precedes each datagram. It contains a GRH or IPv6 header, or an IPv4 header in its last 20
// bytes.
const (
	grhSize  = 40
	ipv4At   = 20
	ipv4Size = 20
	hopLimit = 0xff // of replies
	nextIBA  = 0x1b // the next header of RoCE v1
)

// header is a parsed GRH area: the route back to the sender, and the local GID and its type.
type header struct {
	route ibv.GlobalRoute
	own   [2]uint64
	kind  uapi.IBUverbsGIDType
}

func parseHeader(h *[grhSize]byte) (p header, errno syscall.Errno) {
	var own [16]byte
	switch ip := h[ipv4At:]; {
	// The checksum matters only if the area also looks like IPv6, because Soft-RoCE reports IPv4 headers without one.
	case ip[0] == 4<<4|ipv4Size/4 && (h[0]>>4 != 6 || checksum(ip) == 0xffff):
		from := [16]byte{10: 0xff, 11: 0xff}
		own = from
		copy(from[12:], ip[12:16])
		copy(own[12:], ip[16:])
		*p.route.DGID.Raw() = from
		p.route.TrafficClass, p.route.HopLimit, p.kind = ip[1], hopLimit, uapi.IB_UVERBS_GID_TYPE_ROCE_V2
	case h[0]>>4 == 6:
		flow := binary.BigEndian.Uint32(h[:])
		own = [16]byte(h[24:])
		*p.route.DGID.Raw() = [16]byte(h[8:24])
		p.route.FlowLabel, p.route.TrafficClass = flow&ibv.IB_GRH_FLOWLABEL_MASK, uint8(flow>>20)
		p.route.HopLimit, p.kind = hopLimit, uapi.IB_UVERBS_GID_TYPE_ROCE_V2
		if h[6] == nextIBA {
			p.kind = uapi.IB_UVERBS_GID_TYPE_ROCE_V1
		}
	default:
		return p, syscall.EPROTONOSUPPORT
	}
	p.own = [2]uint64{binary.NativeEndian.Uint64(own[:]), binary.NativeEndian.Uint64(own[8:])}
	return p, 0
}

// checksum returns the ones' complement sum of the 16-bit words of an IPv4 header: 0xffff if its checksum is valid.
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

// reply returns the address handle attributes for a reply to a received datagram.
func (c *context) reply(port uint8, wc *ibv.WC, grh *[grhSize]byte) (attr ibv.AHAttr, errno syscall.Errno) {
	var known ibv.PortAttr
	if errno := c.readPort(port, &known); errno != 0 {
		return attr, errno
	}
	attr = ibv.AHAttr{PortNum: port, SL: wc.SL, DLID: wc.SLID, SrcPathBits: wc.DLIDPathBits}
	if wc.WCFlags&ibv.WC_GRH == 0 {
		return attr, 0
	}
	if grh == nil {
		return attr, syscall.EINVAL
	}
	h, errno := parseHeader(grh)
	if errno != 0 {
		return attr, errno
	}
	all, errno := c.gidTable(maxGIDs)
	if errno != 0 {
		return attr, errno
	}
	i := slices.IndexFunc(all, func(e uapi.IBUverbsGIDEntry) bool {
		return e.PortNum == uint32(port) && e.GID == h.own &&
			(e.GIDType == h.kind || known.LinkLayer != ibv.LINK_LAYER_ETHERNET)
	})
	if i < 0 {
		return attr, syscall.EINVAL
	}
	h.route.SGIDIndex = uint8(all[i].GIDIndex)
	attr.IsGlobal, attr.GRH = 1, h.route
	return attr, 0
}

// initAHFromWC is ibv_init_ah_from_wc.
func (b *Backend) initAHFromWC(a []uint64) syscall.Errno {
	return b.ofContext(a[0], func(c *context) syscall.Errno {
		if a[2] == 0 || a[4] == 0 {
			return syscall.EINVAL
		}
		attr, errno := c.reply(uint8(a[1]), ibv.Ptr[ibv.WC](a[2]).Deref(), ibv.Ptr[[grhSize]byte](a[3]).Deref())
		if errno == 0 {
			*ibv.Ptr[ibv.AHAttr](a[4]).Deref() = attr
		}
		return errno
	})
}

// createAHFromWC is ibv_create_ah_from_wc.
func (b *Backend) createAHFromWC(a []uint64) (uint64, runtime.Errno) {
	p := find[domain](b, a[0])
	if p == nil || a[1] == 0 {
		return 0, syscall.EINVAL
	}
	attr, errno := p.context.reply(uint8(a[3]), ibv.Ptr[ibv.WC](a[1]).Deref(), ibv.Ptr[[grhSize]byte](a[2]).Deref())
	if errno != 0 {
		return 0, errno
	}
	return b.newAH(p, &attr)
}
