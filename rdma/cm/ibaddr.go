// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// IBAddr is an AF_IB address: a port's GID, and a service ID instead of a port number. It needs neither an IP address
// nor IPoIB. All numbers are in host byte order. [NewIBAddr] returns the address for a port number. The zero IBAddr
// means all devices and any service.
//
// Linux connects with AF_IB only on ports whose link layer is InfiniBand or Omni-Path. iWARP does not support it. RoCE
// uses IP addresses: BindIB to a GID returns ENODEV, and so does ResolveIBAddr with a source. Without a source,
// ResolveIBAddr finds the port with the peer's subnet prefix, and ResolveRoute returns ENODEV. BindIB without a GID,
// and Listen after it, succeed on every kernel that supports AF_IB, and apply to all InfiniBand ports, if any. The
// software devices are RoCE devices and return ENODEV at once, except from ResolveRoute.
//
// With AF_IB, private data has 92 bytes in a connection request and 216 in a datagram lookup, because the kernel puts
// no IP addresses in front of it; rdmacm.PrivateDataLimit returns these numbers.
type IBAddr struct {
	// GID is the port's GID; zeros mean all ports of all devices.
	GID ibv.GID
	// PKey is the partition key; 0xFFFF is the default. To resolve an address, it must be in the port's table.
	PKey uint16
	// FlowInfo has the flow label in the lower 20 bits.
	FlowInfo uint32
	// ServiceID identifies the service. The lower 16 bits are the port number; port 0 means a free one. With a
	// ServiceMask that covers them, the bits above are the port space: 0x01060000 for RDMA_PS_TCP, 0x01110000 for
	// RDMA_PS_UDP, 0x013F0000 for RDMA_PS_IB. An ID of RDMA_PS_IB accepts all three, an ID of another port space only
	// its own. Others return EPROTONOSUPPORT.
	ServiceID uint64
	// ServiceMask selects the bits of ServiceID that are valid. With 0, the kernel chooses the service ID.
	ServiceMask uint64
	// ScopeID must be 0.
	ScopeID uint64
}

// NewIBAddr returns the address of a port number in a port space, in the default partition. The service ID is the one
// that librdmacm derives from an IP port.
func NewIBAddr(gid ibv.GID, ps rdmacm.PortSpace, port uint16) IBAddr {
	a := IBAddr{GID: gid, PKey: 0xFFFF, ServiceID: uint64(ps)<<16 | uint64(port), ServiceMask: rdmacm.IB_IP_PS_MASK}
	if port != 0 {
		a.ServiceMask |= rdmacm.IB_IP_PORT_MASK
	}
	return a
}

// Port returns the port number in the service ID.
func (a IBAddr) Port() uint16 { return uint16(a.ServiceID) }

// Network returns "rdma". An IBAddr is a net.Addr.
func (IBAddr) Network() string { return "rdma" }

// String returns the GID, the service ID and the partition.
func (a IBAddr) String() string {
	return fmt.Sprintf("ib[%s]:%#x pkey %#x", a.GID, a.ServiceID, a.PKey)
}

// sockaddr converts the address for C.
func (a IBAddr) sockaddr() *rdmacm.SockaddrStorage {
	s := new(rdmacm.SockaddrStorage)
	*(*rdmacm.SockaddrIB)(unsafe.Pointer(s)) = rdmacm.SockaddrIB{
		SibFamily: rdmacm.AF_IB, SibPKey: ibv.ToBE16(a.PKey), SibFlowinfo: ibv.ToBE32(a.FlowInfo),
		SibSID: ibv.ToBE64(a.ServiceID), SibSIDMask: ibv.ToBE64(a.ServiceMask), SibScopeID: a.ScopeID,
	}
	*(*rdmacm.SockaddrIB)(unsafe.Pointer(s)).SibAddr.IBU.UibAddr8() = *a.GID.Raw()
	return s
}

// ibAddr converts an address of C and reports whether it is an AF_IB address.
func ibAddr(s *rdmacm.Sockaddr) (a IBAddr, ok bool) {
	if s == nil || s.SAFamily != rdmacm.AF_IB {
		return a, false
	}
	ib := (*rdmacm.SockaddrIB)(unsafe.Pointer(s))
	a = IBAddr{
		PKey: ib.SibPKey.Host(), FlowInfo: ib.SibFlowinfo.Host(), ServiceID: ib.SibSID.Host(),
		ServiceMask: ib.SibSIDMask.Host(), ScopeID: ib.SibScopeID,
	}
	*a.GID.Raw() = *ib.SibAddr.IBU.UibAddr8()
	return a, true
}
