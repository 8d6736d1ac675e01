// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"slices"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Hints restrict the results of [GetAddrInfo]. The caller may reuse them when it returns.
//
// Man: rdma_getaddrinfo(3)
type Hints struct {
	// Flags are rdmacm.RAI_PASSIVE for a listener, RAI_NUMERICHOST, RAI_NOROUTE, RAI_FAMILY, RAI_DNS, RAI_SA.
	Flags rdmacm.AddrInfoFlags
	// Family is Linux's number: 2 for IPv4, 10 for IPv6, 0 for any. With rdmacm.AF_IB and the flags RAI_FAMILY and
	// RAI_NUMERICHOST, the node is a GID, and the result is an AF_IB address.
	Family    int32
	QPType    ibv.QPType       // 0: the port space's type
	PortSpace rdmacm.PortSpace // 0: RDMA_PS_TCP
	// Source is the local address; it may be invalid. SourceIB is an AF_IB address to use instead, or nil.
	Source   netip.AddrPort
	SourceIB *IBAddr
	// Destination is the peer's address, for a call without a node and a service; it may be invalid. DestinationIB is
	// an AF_IB address to use instead, or nil; the result's family then is AF_IB.
	Destination   netip.AddrPort
	DestinationIB *IBAddr
	// Route restricts the paths on InfiniBand. librdmacm passes a single path to ibacm(8), without its flags. It
	// ignores Route if there are several paths, if ibacm does not run, or if Flags contain RAI_PASSIVE. The software
	// devices ignore Route.
	Route []rdmacm.IBVPathData
	// Connect is data that must precede private data, as in rdma_addrinfo. librdmacm up to 65 ignores it in hints and
	// sets its own in results.
	Connect []byte
}

// check returns an error if C would dereference a nil pointer, or could not represent the hints.
func (h *Hints) check(verb, node string) error {
	if h.Source.IsValid() && h.SourceIB != nil || h.Destination.IsValid() && h.DestinationIB != nil {
		return verberr.Invalid(verb, "Hints", "set an IP address or an AF_IB address, not both")
	}
	for what, a := range map[string]netip.AddrPort{"Source": h.Source, "Destination": h.Destination} {
		if a.IsValid() {
			if err := isAddress(verb, what, a); err != nil {
				return err
			}
		}
	}
	const native = rdmacm.RAI_FAMILY | rdmacm.RAI_NUMERICHOST
	if h.Family == rdmacm.AF_IB && h.Flags&native == native && h.Flags&rdmacm.RAI_SA == 0 {
		// librdmacm treats the result as an IPv6 address
		if gid, err := netip.ParseAddr(node); err != nil || gid.Is4() {
			return verberr.Invalid(verb, "Hints",
				"with AF_IB, RAI_FAMILY and RAI_NUMERICHOST the node must be a GID, written like an IPv6 address, not "+
					"%q",
				node)
		}
	}
	return nil
}

// cHints are hints in C's format. They contain addresses into the structure itself and into the slices that it holds.
type cHints struct {
	rdmacm.AddrInfo
	source, destination *rdmacm.SockaddrStorage
	route               []rdmacm.IBVPathData
	connect             []byte
}

// c converts the hints for C. The result must stay alive until C has read it.
func (h *Hints) c() *cHints {
	hints := new(cHints)
	hints.AiFlags, hints.AiFamily, hints.AiQPType, hints.AiPortSpace = h.Flags, h.Family, h.QPType, h.PortSpace
	if hints.AiPortSpace == 0 {
		hints.AiPortSpace = rdmacm.PS_TCP
	}
	hints.source, hints.destination = anyAddress(h.Source, h.SourceIB), anyAddress(h.Destination, h.DestinationIB)
	hints.AiSrcAddr, hints.AiSrcLen = ibv.PtrTo(header(hints.source)), sockaddrLen(hints.source)
	hints.AiDstAddr, hints.AiDstLen = ibv.PtrTo(header(hints.destination)), sockaddrLen(hints.destination)
	if hints.destination != nil {
		if hints.AiQPType == 0 { // C sets it only when it resolves a name
			hints.AiQPType = ibv.QPT_RC
			if hints.AiPortSpace == rdmacm.PS_UDP || hints.AiPortSpace == rdmacm.PS_IPOIB {
				hints.AiQPType = ibv.QPT_UD
			}
		}
		if h.DestinationIB != nil && hints.AiFamily == 0 { // likewise
			hints.AiFamily = rdmacm.AF_IB
		}
	}
	if len(h.Route) > 0 {
		hints.route = slices.Clone(h.Route)
		hints.AiRoute, hints.AiRouteLen = uintptr(unsafe.Pointer(&hints.route[0])),
			uint64(len(hints.route))*uint64(unsafe.Sizeof(hints.route[0]))
	}
	if len(h.Connect) > 0 {
		hints.connect = slices.Clone(h.Connect)
		hints.AiConnect, hints.AiConnectLen = uintptr(unsafe.Pointer(&hints.connect[0])), uint64(len(hints.connect))
	}
	return hints
}

// anyAddress converts whichever address is set, or returns nil.
func anyAddress(ip netip.AddrPort, ib *IBAddr) *rdmacm.SockaddrStorage {
	switch {
	case ib != nil:
		return ib.sockaddr()
	case ip.IsValid():
		return sockaddr(ip)
	}
	return nil
}

// sockaddrLen returns the length of an address.
func sockaddrLen(s *rdmacm.SockaddrStorage) uint32 {
	switch {
	case s == nil:
		return 0
	case s.SsFamily == afInet:
		return uint32(unsafe.Sizeof(rdmacm.SockaddrIn{}))
	case s.SsFamily == rdmacm.AF_IB:
		return uint32(unsafe.Sizeof(rdmacm.SockaddrIB{}))
	}
	return uint32(unsafe.Sizeof(rdmacm.SockaddrIn6{}))
}
