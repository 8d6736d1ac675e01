// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"

	"github.com/goverbs/goverbs/generated/librdmacm"
)

// LocalAddr returns the ID's local address. It is invalid if the ID is not bound, or if its address is not an IP
// address: see LocalIBAddr.
//
// C: rdma_get_local_addr, rdma_get_src_port
//
// Man: rdma_get_local_addr(3), rdma_get_src_port(3)
func (id *ID) LocalAddr() netip.AddrPort {
	if id.use("rdma_get_local_addr", id.name) != nil {
		return netip.AddrPort{}
	}
	defer id.done()
	return addrPort(librdmacm.GetLocalAddr(id.c))
}

// PeerAddr returns the peer's address. It is invalid if it is unknown or not an IP address: see PeerIBAddr.
//
// C: rdma_get_peer_addr, rdma_get_dst_port
//
// Man: rdma_get_peer_addr(3), rdma_get_dst_port(3)
func (id *ID) PeerAddr() netip.AddrPort {
	if id.use("rdma_get_peer_addr", id.name) != nil {
		return netip.AddrPort{}
	}
	defer id.done()
	return addrPort(librdmacm.GetPeerAddr(id.c))
}

// LocalIBAddr returns the ID's local address and reports whether it is an AF_IB address.
//
// C: rdma_get_local_addr, rdma_get_src_port
//
// Man: rdma_get_local_addr(3), rdma_get_src_port(3)
func (id *ID) LocalIBAddr() (a IBAddr, ok bool) {
	if id.use("rdma_get_local_addr", id.name) != nil {
		return a, false
	}
	defer id.done()
	return ibAddr(librdmacm.GetLocalAddr(id.c))
}

// PeerIBAddr returns the peer's address and reports whether it is known and an AF_IB address.
//
// C: rdma_get_peer_addr, rdma_get_dst_port
//
// Man: rdma_get_peer_addr(3), rdma_get_dst_port(3)
func (id *ID) PeerIBAddr() (a IBAddr, ok bool) {
	if id.use("rdma_get_peer_addr", id.name) != nil {
		return a, false
	}
	defer id.done()
	return ibAddr(librdmacm.GetPeerAddr(id.c))
}
