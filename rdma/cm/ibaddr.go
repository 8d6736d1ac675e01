package cm

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
)

// IBAddr is an address of InfiniBand's own, AF_IB: a port's GID, and a service ID where IP has a port number. It needs no IP address, and no
// IPoIB. All numbers are in the byte order of the machine. [NewIBAddr] makes one of a port number, as IP addresses have it; the zero IBAddr
// means all devices, and any service.
//
// Linux connects by AF_IB on ports whose link layer is InfiniBand, or Omni-Path, alone. iWARP knows none of it. On RoCE, whose addresses are IP's,
// nobody is reached: BindIB to a GID is ENODEV, and so is ResolveIBAddr with a source; without a source it finds the port that has the peer's
// subnet prefix, and then ResolveRoute is ENODEV. BindIB to no GID in particular, and Listen then, succeed wherever there is a kernel that
// knows AF_IB: they mean what InfiniBand there is. The software devices are RoCE, and refuse all but ResolveRoute at once, with ENODEV.
//
// With AF_IB private data has 92 bytes in a request of connections, and 216 in one of datagrams, for the kernel puts no addresses in front of it:
// rdmacm.PrivateDataLimit knows.
type IBAddr struct {
	// GID is the port's; zeros mean all ports of all devices.
	GID ibv.GID
	// PKey is the partition, 0xFFFF the default one. It has to be in the port's table where an address is resolved.
	PKey uint16
	// FlowInfo has the flow label in the lower 20 bits.
	FlowInfo uint32
	// ServiceID names what is listened at. Its lower 16 bits are the port number, and those above are the port space where ServiceMask says so:
	// 0x01060000 for RDMA_PS_TCP, 0x01110000 for RDMA_PS_UDP, 0x013F0000 for RDMA_PS_IB. An ID of RDMA_PS_IB takes all three, one of another
	// port space takes its own; anything else is EPROTONOSUPPORT. Port 0 means one that is free.
	ServiceID uint64
	// ServiceMask has the bits of ServiceID that count. 0 leaves everything to the kernel.
	ServiceMask uint64
	// ScopeID is 0.
	ScopeID uint64
}

// NewIBAddr is the address of a port number in a port space, as librdmacm makes it of IP's: in the default partition.
func NewIBAddr(gid ibv.GID, ps rdmacm.PortSpace, port uint16) IBAddr {
	a := IBAddr{GID: gid, PKey: 0xFFFF, ServiceID: uint64(ps)<<16 | uint64(port), ServiceMask: rdmacm.IB_IP_PS_MASK}
	if port != 0 {
		a.ServiceMask |= rdmacm.IB_IP_PORT_MASK
	}
	return a
}

// Port is the port number in the service ID.
func (a IBAddr) Port() uint16 { return uint16(a.ServiceID) }

// Network is "rdma": an IBAddr is a net.Addr.
func (IBAddr) Network() string { return "rdma" }

// String has the GID, the service ID and the partition.
func (a IBAddr) String() string {
	return fmt.Sprintf("ib[%s]:%#x pkey %#x", rdma.GIDString(a.GID), a.ServiceID, a.PKey)
}

// sockaddr is the address as C takes it.
func (a IBAddr) sockaddr() *rdmacm.SockaddrStorage {
	s := new(rdmacm.SockaddrStorage)
	*(*rdmacm.SockaddrIB)(unsafe.Pointer(s)) = rdmacm.SockaddrIB{
		SibFamily: rdmacm.AF_IB, SibPKey: ibv.ToBE16(a.PKey), SibFlowinfo: ibv.ToBE32(a.FlowInfo),
		SibSID: ibv.ToBE64(a.ServiceID), SibSIDMask: ibv.ToBE64(a.ServiceMask), SibScopeID: a.ScopeID,
	}
	*(*rdmacm.SockaddrIB)(unsafe.Pointer(s)).SibAddr.IBU.UibAddr8() = *a.GID.Raw()
	return s
}

// ibAddr is an address of C's, and whether it is one of AF_IB.
func ibAddr(s *rdmacm.Sockaddr) (a IBAddr, ok bool) {
	if s == nil || s.SAFamily != rdmacm.AF_IB {
		return a, false
	}
	ib := (*rdmacm.SockaddrIB)(unsafe.Pointer(s))
	a = IBAddr{
		PKey: ib.SibPKey.Host(), FlowInfo: ib.SibFlowinfo.Host(), ServiceID: ib.SibSID.Host(), ServiceMask: ib.SibSIDMask.Host(), ScopeID: ib.SibScopeID,
	}
	*a.GID.Raw() = *ib.SibAddr.IBU.UibAddr8()
	return a, true
}
