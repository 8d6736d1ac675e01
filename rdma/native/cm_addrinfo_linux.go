// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	stdcontext "context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// addrInfo is a result of rdma_getaddrinfo with its addresses.
type addrInfo struct{ record *addrInfoRecord }

type addrInfoRecord struct {
	rdmacm.AddrInfo
	source, to rdmacm.SockaddrStorage
}

// Errors of getaddrinfo(3), numbered as in the GNU C library.
const (
	noName    = -2
	tryAgain  = -3
	noFamily  = -6
	noService = -8
)

// getAddrInfo is rdma_getaddrinfo.
func (b *Backend) getAddrInfo(a []uint64) (uint64, runtime.Errno) {
	if a[0] == 0 && a[1] == 0 && a[2] == 0 || a[3] == 0 {
		return ^uint64(0), syscall.EINVAL
	}
	record, code, errno := b.resolve(a[0], a[1], a[2])
	switch {
	case errno != 0:
		return ^uint64(0), errno
	case code != 0:
		return uint64(code), 0
	}
	b.give(record, a[3])
	return 0, 0
}

// give registers record and stores its address at to. The program frees it.
func (b *Backend) give(record *addrInfoRecord, to uint64) {
	b.enter(addressOf(&record.AddrInfo), &addrInfo{record})
	*ibv.Ptr[uint64](to).Deref() = addressOf(&record.AddrInfo)
}

// resolve returns the record for a node, a service and hints. If it fails, it returns a getaddrinfo error code or an
// errno. It uses Go's resolver and does not query ibacm(8) for routes.
func (b *Backend) resolve(node, service, hinted uint64) (record *addrInfoRecord, code int, errno syscall.Errno) {
	var hints rdmacm.AddrInfo
	if hinted != 0 {
		hints = *ibv.Ptr[rdmacm.AddrInfo](hinted).Deref()
	}
	if hints.AiFlags&rdmacm.RAI_SA != 0 { // subnet administration of InfiniBand
		return nil, 0, syscall.EOPNOTSUPP
	}
	passive := hints.AiFlags&rdmacm.RAI_PASSIVE != 0
	const gid = rdmacm.RAI_FAMILY | rdmacm.RAI_NUMERICHOST
	isGID := hints.AiFamily == rdmacm.AF_IB && hints.AiFlags&gid == gid && (node != 0 || service != 0)
	if hints.AiFamily == rdmacm.AF_IB && (node != 0 || service != 0) { // only numeric GIDs resolve to AF_IB addresses
		if hints.AiFamily = 0; isGID {
			hints.AiFamily = syscall.AF_INET6
		}
	}
	var own netip.AddrPort
	if node != 0 || service != 0 {
		if own, code = lookup(node, service, hints.AiFamily, passive, hints.AiFlags&rdmacm.RAI_NUMERICHOST != 0); code != 0 {
			return nil, code, 0
		}
	}
	if record, errno = allocate[addrInfoRecord](b); errno != 0 {
		return nil, 0, errno
	}
	i := &record.AddrInfo
	i.AiFlags, i.AiFamily, i.AiQPType, i.AiPortSpace = hints.AiFlags&rdmacm.RAI_PASSIVE, hints.AiFamily, hints.AiQPType,
		hints.AiPortSpace
	if i.AiPortSpace == 0 {
		if i.AiPortSpace = rdmacm.PS_TCP; i.AiQPType == ibv.QPT_UD {
			i.AiPortSpace = rdmacm.PS_UDP
		}
	}
	if i.AiQPType == 0 {
		if i.AiQPType = ibv.QPT_RC; i.AiPortSpace == rdmacm.PS_UDP || i.AiPortSpace == rdmacm.PS_IPOIB {
			i.AiQPType = ibv.QPT_UD
		}
	}
	if hints.AiSrcLen > 0 {
		i.AiSrcLen = uint32(readSockaddr(&record.source, uint64(hints.AiSrcAddr)))
	}
	if hints.AiDstLen > 0 && node == 0 && service == 0 {
		i.AiDstLen = uint32(readSockaddr(&record.to, uint64(hints.AiDstAddr)))
	}
	if own.IsValid() {
		found, n := &record.to, &i.AiDstLen
		if passive {
			found, n = &record.source, &i.AiSrcLen
		}
		if isGID {
			writeGID(found, own, i.AiPortSpace)
		} else {
			writeSockaddr(found, own)
		}
		*n, i.AiFamily = uint32(addressSize(found.SsFamily)), int32(found.SsFamily)
	}
	if i.AiSrcLen > 0 {
		i.AiSrcAddr = ibv.Ptr[rdmacm.Sockaddr](addressOf(&record.source))
	}
	if i.AiDstLen > 0 {
		i.AiDstAddr = ibv.Ptr[rdmacm.Sockaddr](addressOf(&record.to))
	}
	return record, 0, 0
}

// resolveAddrInfo implements rdma_resolve_addrinfo. The result is available immediately, but the caller still gets an
// event for it.
func (id *identifier) resolveAddrInfo(a []uint64) syscall.Errno {
	b := id.backend
	id.mu.Lock()
	busy := id.addresses != nil
	id.mu.Unlock()
	if busy {
		return syscall.EBUSY
	}
	record, code, errno := b.resolve(a[0], a[1], a[2])
	if code != 0 { // as in librdmacm
		errno = syscall.Errno(-code)
	}
	if errno != 0 {
		return errno
	}
	id.mu.Lock()
	id.addresses = record
	id.mu.Unlock()
	if errno := id.writeAny(rdmacm.CM_EVENT_INTERNAL, 0, 0); errno != 0 {
		id.mu.Lock()
		id.addresses = nil
		id.mu.Unlock()
		free(b, record)
		return errno
	}
	return id.complete()
}

// queryAddrInfo is rdma_query_addrinfo.
func (id *identifier) queryAddrInfo(a []uint64) syscall.Errno {
	if a[0] == 0 {
		return syscall.EINVAL
	}
	id.mu.Lock()
	record := id.addresses
	id.addresses = nil
	id.mu.Unlock()
	if record == nil {
		return syscall.ENOENT
	}
	id.backend.give(record, a[0])
	return 0
}

func (b *Backend) freeAddrInfo(address uint64) {
	if i := find[addrInfo](b, address); i != nil {
		b.forget(address)
		free(b, i.record)
	}
}

// lookup resolves a node and a service, either of which may be NULL. It returns a getaddrinfo error code, or 0.
func lookup(node, service uint64, family int32, passive, numeric bool) (a netip.AddrPort, code int) {
	network := map[int32]string{0: "ip", syscall.AF_INET: "ip4", syscall.AF_INET6: "ip6"}[family]
	if network == "" {
		return a, noFamily
	}
	port := 0
	if service != 0 {
		name := textAt(service)
		n, err := strconv.ParseUint(name, 10, 16)
		if port = int(n); err != nil {
			if port, err = net.DefaultResolver.LookupPort(stdcontext.Background(), "tcp", name); err != nil {
				return a, noService
			}
		}
	}
	var ip netip.Addr
	switch {
	case node != 0:
		if ip, code = lookupNode(textAt(node), network, numeric); code != 0 {
			return a, code
		}
	case passive && family == syscall.AF_INET6:
		ip = netip.IPv6Unspecified()
	case passive:
		ip = netip.IPv4Unspecified()
	case family == syscall.AF_INET6:
		ip = netip.IPv6Loopback()
	default:
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(ip, uint16(port)), 0
}

func lookupNode(name, network string, numeric bool) (ip netip.Addr, code int) {
	if ip, err := netip.ParseAddr(name); err == nil {
		if ip.Zone() != "" && zoneIndex(ip.Zone()) == 0 || network == "ip4" && !ip.Is4() || network == "ip6" && ip.Is4() {
			return ip, noName
		}
		return ip, 0
	}
	if numeric {
		return ip, noName
	}
	all, err := net.DefaultResolver.LookupNetIP(stdcontext.Background(), network, name)
	if err != nil || len(all) == 0 {
		var problem *net.DNSError
		if errors.As(err, &problem) && !problem.IsNotFound {
			return ip, tryAgain
		}
		return ip, noName
	}
	return all[0].Unmap(), 0
}

// textAt returns the C string at an address, or an empty string if it exceeds 1,023 bytes, the maximum length of a
// name.
func textAt(address uint64) string {
	for n := 0; n < 1024; n++ {
		if *ibv.Ptr[byte](address + uint64(n)).Deref() == 0 {
			return string(listAt[byte](address, n))
		}
	}
	return ""
}

// zoneIndex returns the index of a zone's network interface, or 0.
func zoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(n)
}

func writeSockaddr(to *rdmacm.SockaddrStorage, a netip.AddrPort) {
	port := uint16(ibv.ToBE16(a.Port()))
	if ip := a.Addr(); ip.Is4() {
		in, four := (*rdmacm.SockaddrIn)(unsafe.Pointer(to)), ip.As4()
		in.SinFamily, in.SinPort, in.SinAddr.SAddr = syscall.AF_INET, port, binary.NativeEndian.Uint32(four[:])
		return
	}
	in := (*rdmacm.SockaddrIn6)(unsafe.Pointer(to))
	in.Sin6Family, in.Sin6Port, in.Sin6ScopeID = syscall.AF_INET6, port, zoneIndex(a.Addr().Zone())
	*in.Sin6Addr.In6U.U6Addr8() = a.Addr().As16()
}

// writeGID writes a GID and a port as an AF_IB address.
func writeGID(to *rdmacm.SockaddrStorage, a netip.AddrPort, space rdmacm.PortSpace) {
	ib := (*rdmacm.SockaddrIB)(unsafe.Pointer(to))
	ib.SibFamily, ib.SibPKey = rdmacm.AF_IB, ibv.ToBE16(0xFFFF)
	*ib.SibAddr.IBU.UibAddr8() = a.Addr().As16()
	mask := uint64(rdmacm.IB_IP_PS_MASK)
	if a.Port() != 0 {
		mask |= rdmacm.IB_IP_PORT_MASK
	}
	ib.SibSID, ib.SibSIDMask = ibv.ToBE64(uint64(space)<<16|uint64(a.Port())), ibv.ToBE64(mask)
}
