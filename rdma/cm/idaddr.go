// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"

	"github.com/goverbs/goverbs/generated/librdmacm"
)

// LocalAddr returns the ID's local address after it is bound. It is not valid if the ID is not bound, or not to an IP
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

// PeerAddr returns the other side's address, if it is known.
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

// LocalIBAddr returns the ID's local AF_IB address, and whether it has one.
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

// PeerIBAddr returns the other side's AF_IB address, and whether it is known.
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
