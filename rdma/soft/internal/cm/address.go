// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// Address families as Linux numbers them.
const (
	afInet  = 2
	afInet6 = 10
)

// readAddress is an address of C's; not valid where it is none of IP.
func readAddress(s *rdmacm.Sockaddr) netip.AddrPort {
	if s == nil {
		return netip.AddrPort{}
	}
	switch s.SAFamily {
	case afInet:
		in := (*rdmacm.SockaddrIn)(unsafe.Pointer(s))
		var four [4]byte
		binary.NativeEndian.PutUint32(four[:], in.SinAddr.SAddr)
		return netip.AddrPortFrom(netip.AddrFrom4(four), ibv.BE16(in.SinPort).Host())
	case afInet6:
		in := (*rdmacm.SockaddrIn6)(unsafe.Pointer(s))
		return netip.AddrPortFrom(netip.AddrFrom16(*in.Sin6Addr.In6U.U6Addr8()).Unmap(), ibv.BE16(in.Sin6Port).Host())
	}
	return netip.AddrPort{}
}

// scopeOf is the network interface that C's address names, if it is a link-local one, or 0.
func scopeOf(s *rdmacm.Sockaddr) uint32 {
	if !isLinkLocal(readAddress(s).Addr()) {
		return 0
	}
	return (*rdmacm.SockaddrIn6)(unsafe.Pointer(s)).Sin6ScopeID
}

// isLinkLocal reports whether an address means something on one network interface alone.
func isLinkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// zoneIndex returns the index of the network interface that a zone names, or 0 if there is none.
func zoneIndex(zone string) uint32 {
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}

// writeAddress is readAddress the other way round, and gives the length of what it wrote. Scope is the interface of a
// link-local address.
func writeAddress(s *rdmacm.SockaddrStorage, a netip.AddrPort, scope uint32) uint32 {
	*s = rdmacm.SockaddrStorage{}
	port := uint16(ibv.ToBE16(a.Port()))
	if a.Addr().Is4() {
		in, four := (*rdmacm.SockaddrIn)(unsafe.Pointer(s)), a.Addr().As4()
		in.SinFamily, in.SinPort, in.SinAddr.SAddr = afInet, port, binary.NativeEndian.Uint32(four[:])
		return uint32(unsafe.Sizeof(*in))
	}
	in := (*rdmacm.SockaddrIn6)(unsafe.Pointer(s))
	in.Sin6Family, in.Sin6Port = afInet6, port
	*in.Sin6Addr.In6U.U6Addr8() = a.Addr().As16()
	if isLinkLocal(a.Addr()) {
		in.Sin6ScopeID = scope
	}
	return uint32(unsafe.Sizeof(*in))
}

// addressAt is readAddress of an argument.
func addressAt(p ibv.Ptr[rdmacm.Sockaddr]) netip.AddrPort { return readAddress(p.Deref()) }

// portNumberOf is for rdma_get_src_port and rdma_get_dst_port.
func portNumberOf(which func(*rdmacm.Addr) *rdmacm.Sockaddr) runtime.Func {
	return abi.Result(abi.Take1(func(of ibv.Ptr[rdmacm.CMID]) ibv.BE16 {
		if id := device.Find[identifier](of); id != nil {
			return ibv.ToBE16(readAddress(which(&id.record.Route.Addr)).Port())
		}
		return 0
	}))
}

// isNative says whether an argument is an address of InfiniBand's own, which no device here has: they are RoCE, of
// which Linux says ENODEV, too.
func isNative(p ibv.Ptr[rdmacm.Sockaddr]) bool {
	return p != 0 && p.Deref().SAFamily == rdmacm.AF_IB
}

func unspecified(four bool) netip.Addr {
	if four {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func loopback(four bool) netip.Addr {
	if four {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// writeNative writes a GID and a port as an address of InfiniBand's own, and gives its length.
func writeNative(to *rdmacm.SockaddrStorage, a netip.AddrPort, space rdmacm.PortSpace) uint32 {
	*to = rdmacm.SockaddrStorage{}
	native := (*rdmacm.SockaddrIB)(unsafe.Pointer(to))
	native.SibFamily, native.SibPKey = rdmacm.AF_IB, ibv.ToBE16(0xFFFF)
	*native.SibAddr.IBU.UibAddr8() = a.Addr().As16()
	mask := uint64(rdmacm.IB_IP_PS_MASK)
	if a.Port() != 0 {
		mask |= rdmacm.IB_IP_PORT_MASK
	}
	native.SibSID, native.SibSIDMask = ibv.ToBE64(uint64(space)<<16|uint64(a.Port())), ibv.ToBE64(mask)
	return uint32(unsafe.Sizeof(*native))
}

// copyAddress copies an address of hints, whatever it is of, and gives its length.
func copyAddress(to *rdmacm.SockaddrStorage, from ibv.Ptr[rdmacm.Sockaddr]) uint32 {
	if a := readAddress(from.Deref()); a.IsValid() {
		return writeAddress(to, a, scopeOf(from.Deref()))
	}
	if !isNative(from) {
		return 0
	}
	native := (*rdmacm.SockaddrIB)(unsafe.Pointer(to))
	*native = *ibv.Ptr[rdmacm.SockaddrIB](from).Deref()
	return uint32(unsafe.Sizeof(*native))
}
