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
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// Address families, numbered as on Linux.
const (
	afInet  = 2
	afInet6 = 10
)

// readAddress reads a C address. The result is invalid if it is not an IP address.
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

// scopeOf returns the interface index of a link-local C address, or 0.
func scopeOf(s *rdmacm.Sockaddr) uint32 {
	if !isLinkLocal(readAddress(s).Addr()) {
		return 0
	}
	return (*rdmacm.SockaddrIn6)(unsafe.Pointer(s)).Sin6ScopeID
}

// isLinkLocal reports whether an address is valid only on one network interface.
func isLinkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// zoneIndex returns the index of a zone's network interface, or 0.
func zoneIndex(zone string) uint32 {
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}

// writeAddress is the inverse of readAddress, and returns the length written. scope is the interface of a link-local
// address.
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

// addressAt reads the address in an argument.
func addressAt(p ibv.Ptr[rdmacm.Sockaddr]) netip.AddrPort { return readAddress(p.Deref()) }

// portNumberOf implements rdma_get_src_port and rdma_get_dst_port.
func portNumberOf(which func(*rdmacm.Addr) *rdmacm.Sockaddr) runtime.Func {
	return abi.Result(abi.Take1(func(of ibv.Ptr[rdmacm.CMID]) ibv.BE16 {
		if id := verbs.Find[identifier](of); id != nil {
			return ibv.ToBE16(readAddress(which(&id.record.Route.Addr)).Port())
		}
		return 0
	}))
}

// isNative reports whether an argument is an AF_IB address. No RoCE device has one, so both Linux and this backend
// return ENODEV.
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

// writeNative writes a GID and a port as an AF_IB address, and returns its length.
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

// copyAddress copies an address of any family from hints, and returns its length.
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
