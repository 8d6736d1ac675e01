// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Linux's address families. Package syscall has those of the target system instead.
const (
	afInet  = 2
	afInet6 = 10
)

// Sockaddr converts an address for calls of generated/librdmacm. The result has the size of a sockaddr_storage.
func Sockaddr(a netip.AddrPort) *rdmacm.Sockaddr { return header(sockaddr(a)) }

// AddrPort converts an address of C. The result is invalid if s is nil or neither an IPv4 nor an IPv6 address.
func AddrPort(s *rdmacm.Sockaddr) netip.AddrPort { return addrPort(s) }

// sockaddr converts an address for C.
func sockaddr(a netip.AddrPort) *rdmacm.SockaddrStorage {
	s := new(rdmacm.SockaddrStorage)
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], a.Port())
	if ip := a.Addr(); ip.Is4() || ip.Is4In6() {
		in := (*rdmacm.SockaddrIn)(unsafe.Pointer(s))
		four := ip.Unmap().As4()
		in.SinFamily, in.SinPort, in.SinAddr.SAddr = afInet, binary.NativeEndian.Uint16(port[:]),
			binary.NativeEndian.Uint32(four[:])
	} else {
		in := (*rdmacm.SockaddrIn6)(unsafe.Pointer(s))
		in.Sin6Family, in.Sin6Port, in.Sin6ScopeID = afInet6, binary.NativeEndian.Uint16(port[:]), scope(ip.Zone())
		*in.Sin6Addr.In6U.U6Addr8() = ip.As16()
	}
	return s
}

// header returns the common header of all kinds of addresses.
func header(s *rdmacm.SockaddrStorage) *rdmacm.Sockaddr {
	return (*rdmacm.Sockaddr)(unsafe.Pointer(s))
}

// scope returns the scope ID of an IPv6 zone: a number, or the index of a network interface.
func scope(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}

// addressString formats an address of C for error messages, or returns "" if there is none.
func addressString(s *rdmacm.Sockaddr) string {
	if a := addrPort(s); a.IsValid() {
		return a.String()
	}
	if a, ok := ibAddr(s); ok {
		return a.String()
	}
	return ""
}

// isAddress returns an error for an address that C cannot represent.
func isAddress(verb, what string, a netip.AddrPort) error {
	zone := a.Addr().Zone()
	switch {
	case !a.IsValid():
		return verberr.Invalid(verb, "", "%s is not valid", what)
	case zone != "" && scope(zone) == 0:
		return verberr.Invalid(verb, "", "%s %v: there is no network interface %q", what, a, zone)
	}
	return nil
}

// addrPort converts an address of C. The result is invalid if it is neither an IPv4 nor an IPv6 address.
func addrPort(s *rdmacm.Sockaddr) netip.AddrPort {
	if s == nil {
		return netip.AddrPort{}
	}
	var port [2]byte
	switch s.SAFamily {
	case afInet:
		in := (*rdmacm.SockaddrIn)(unsafe.Pointer(s))
		var four [4]byte
		binary.NativeEndian.PutUint16(port[:], in.SinPort)
		binary.NativeEndian.PutUint32(four[:], in.SinAddr.SAddr)
		return netip.AddrPortFrom(netip.AddrFrom4(four), binary.BigEndian.Uint16(port[:]))
	case afInet6:
		in := (*rdmacm.SockaddrIn6)(unsafe.Pointer(s))
		binary.NativeEndian.PutUint16(port[:], in.Sin6Port)
		ip := netip.AddrFrom16(*in.Sin6Addr.In6U.U6Addr8()).Unmap()
		if in.Sin6ScopeID != 0 && ip.Is6() {
			zone := strconv.FormatUint(uint64(in.Sin6ScopeID), 10)
			if i, err := net.InterfaceByIndex(int(in.Sin6ScopeID)); err == nil {
				zone = i.Name
			}
			ip = ip.WithZone(zone)
		}
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(port[:]))
	}
	return netip.AddrPort{}
}
