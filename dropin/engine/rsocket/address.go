// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package rsocket

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

// parseAddress reads a sockaddr_in or a sockaddr_in6, whose port is in network byte order.
func parseAddress(b []byte) (netip.AddrPort, error) {
	if len(b) < 2 {
		return netip.AddrPort{}, unix.EINVAL
	}
	family := binary.NativeEndian.Uint16(b)
	switch {
	case family == unix.AF_INET && len(b) >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), binary.BigEndian.Uint16(b[2:])), nil
	case family == unix.AF_INET6 && len(b) >= unix.SizeofSockaddrInet6:
		in := new(rdmacm.SockaddrIn6)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(in)), unsafe.Sizeof(*in)), b)
		return cm.AddrPort((*rdmacm.Sockaddr)(unsafe.Pointer(in))), nil
	case family == unix.AF_INET || family == unix.AF_INET6:
		return netip.AddrPort{}, unix.EINVAL
	}
	return netip.AddrPort{}, unix.EAFNOSUPPORT
}

// formatAddress returns the address as a sockaddr of a family.
func formatAddress(family int, at netip.AddrPort) []byte {
	ip := at.Addr()
	if family == unix.AF_INET6 {
		b := make([]byte, unix.SizeofSockaddrInet6)
		binary.NativeEndian.PutUint16(b, unix.AF_INET6)
		binary.BigEndian.PutUint16(b[2:], at.Port())
		if ip.IsValid() && !ip.IsUnspecified() {
			long := ip.As16()
			copy(b[8:], long[:])
		}
		if ip.Zone() != "" {
			in := (*rdmacm.SockaddrIn6)(unsafe.Pointer(cm.Sockaddr(at)))
			binary.NativeEndian.PutUint32(b[24:], in.Sin6ScopeID)
		}
		return b
	}
	b := make([]byte, unix.SizeofSockaddrInet4)
	binary.NativeEndian.PutUint16(b, unix.AF_INET)
	binary.BigEndian.PutUint16(b[2:], at.Port())
	if ip.Is4() {
		short := ip.As4()
		copy(b[4:], short[:])
	}
	return b
}

// store writes as much of b as fits, and the length of b.
func store(b []byte, to, length uint64) error {
	if length == 0 {
		return unix.EFAULT
	}
	n := ibv.Ptr[uint32](length).Deref()
	if to != 0 {
		copy(unsafe.Slice(ibv.Ptr[byte](to).Deref(), int(*n)), b)
	}
	*n = uint32(len(b))
	return nil
}

// peerName implements rgetpeername.
func (k *socket) peerName(to, length uint64) error {
	c := k.conn.Load()
	if c == nil {
		return unix.ENOTCONN
	}
	return store(formatAddress(k.family, ipOf(c.RemoteAddr())), to, length)
}

// ownName implements rgetsockname.
func (k *socket) ownName(to, length uint64) error {
	k.mu.Lock()
	at := k.local
	k.mu.Unlock()
	if c := k.conn.Load(); c != nil {
		at = ipOf(c.LocalAddr())
	}
	return store(formatAddress(k.family, at), to, length)
}

func ipOf(a net.Addr) netip.AddrPort {
	ip, _ := a.(stream.Addr)
	return ip.AddrPort
}
