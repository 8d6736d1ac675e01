// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// group is a multicast group joined by an identifier.
type group struct {
	id       *identifier
	address  netip.AddrPort
	gid      [16]byte
	context  uint64
	sendOnly bool
	events   device.Reports
}

// noIPv6Groups is Linux's errno for RoCE v2 devices: ENOTSUPP, which is defined only inside the kernel.
const noIPv6Groups runtime.Errno = 524

// joinMulticast is rdma_join_multicast.
func joinMulticast(id *identifier, address ibv.Ptr[rdmacm.Sockaddr], context uint64) runtime.Errno {
	return id.join(addressAt(address), rdmacm.MC_JOIN_FLAG_FULLMEMBER, context)
}

// joinMulticastEx is rdma_join_multicast_ex.
func joinMulticastEx(id *identifier, join ibv.Ptr[rdmacm.CMJoinMCAttrEx], context uint64) runtime.Errno {
	if join == 0 {
		return syscall.EINVAL
	}
	const needs = rdmacm.CM_JOIN_MC_ATTR_ADDRESS | rdmacm.CM_JOIN_MC_ATTR_JOIN_FLAGS
	attr := join.Deref()
	switch {
	case attr.CompMask >= rdmacm.CM_JOIN_MC_ATTR_RESERVED:
		return syscall.EOPNOTSUPP
	case attr.CompMask != needs || attr.JoinFlags >= rdmacm.MC_JOIN_FLAG_RESERVED:
		return syscall.EINVAL
	}
	return id.join(addressAt(attr.Addr), attr.JoinFlags, context)
}

func (id *identifier) join(address netip.AddrPort, flags rdmacm.CMMCJoinFlags, context uint64) runtime.Errno {
	if !address.IsValid() || !device.IsMulticast(address.Addr().As16()) || !id.datagrams() || id.device == nil ||
		id.state != bound && id.state != addrResolved && id.state != routeResolved {
		return syscall.EINVAL
	}
	if to := address.Addr(); to.Is6() && !to.Is4In6() {
		return noIPv6Groups
	}
	g := &group{id: id, address: address, gid: address.Addr().As16(), context: context,
		sendOnly: flags == rdmacm.MC_JOIN_FLAG_SENDONLY_FULLMEMBER}
	id.groups = append(id.groups, g)
	id.push(&event{kind: rdmacm.CM_EVENT_MULTICAST_JOIN, group: g,
		ud: rdmacm.UDParam{AHAttr: id.av(g.gid), QPNum: device.MulticastQPN, QKey: rdmacm.UDP_QKEY}})
	return 0
}

// attach attaches the identifier's queue pair, as librdmacm does when it processes the event. It is called with the
// fabric's lock.
func (g *group) attach() runtime.Errno {
	if q := g.id.qp(); q != nil && !g.sendOnly {
		return q.Attach(g.gid)
	}
	return 0
}

// leaveMulticast is rdma_leave_multicast. It waits until all events of the group are acknowledged.
func leaveMulticast(id *identifier, of ibv.Ptr[rdmacm.Sockaddr]) runtime.Errno {
	address := addressAt(of)
	if !address.IsValid() {
		return syscall.EINVAL
	}
	i := slices.IndexFunc(id.groups, func(g *group) bool { return g.address == address })
	if i < 0 {
		return syscall.EADDRNOTAVAIL
	}
	g := id.groups[i]
	id.leaveGroup(g)
	id.cm.Settle(&g.events)
	return 0
}

func (id *identifier) leaveGroup(g *group) {
	id.groups = slices.DeleteFunc(id.groups, func(other *group) bool { return other == g })
	if q := id.qp(); q != nil && !g.sendOnly {
		q.Detach(g.gid)
	}
	id.channel.events.Drop(func(e *event) bool { return e.group == g })
}
