// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// writeAddresses updates the addresses in the identifier's record.
func (id *identifier) writeAddresses() {
	a := &id.record.Route.Addr
	if id.local.IsValid() {
		writeAddress(a.SrcStorage(), id.local, id.scope)
	}
	if id.to.IsValid() {
		writeAddress(a.DstStorage(), id.to, id.scope)
	}
	if id.device == nil {
		return
	}
	ib := a.Addr.IBAddr()
	ib.PKey = ibv.ToBE16(id.device.PKey())
	*ib.SGID.Raw(), *ib.DGID.Raw() = id.device.GIDAtIP(id.local.Addr()), id.gidOfPeer()
}

// gidOfPeer returns the destination GID of the identifier's packets.
func (id *identifier) gidOfPeer() (gid [16]byte) {
	ip := id.to.Addr()
	if !ip.IsValid() {
		return gid
	}
	if to := id.cm.Owner(ip); to != nil {
		return to.GIDAtIP(ip)
	}
	return ip.As16()
}

// bindAddr is rdma_bind_addr.
func bindAddr(id *identifier, to ibv.Ptr[rdmacm.Sockaddr]) runtime.Errno {
	if id.state == idle && isNative(to) {
		return syscall.ENODEV
	}
	address := addressAt(to)
	if !address.IsValid() || id.state != idle {
		return syscall.EINVAL
	}
	if errno := id.bind(address, scopeOf(to.Deref()), true); errno != 0 {
		return errno
	}
	if errno := id.attach(); errno != 0 {
		id.unbind()
		id.state, id.local, id.scope, id.device = idle, netip.AddrPort{}, 0, nil
		return errno
	}
	id.writeAddresses()
	return 0
}

// bind binds the identifier to an address, of a device or of all devices, and to a port, which is optionally claimed.
// scope is the interface of a link-local address.
func (id *identifier) bind(address netip.AddrPort, scope uint32, claims bool) runtime.Errno {
	d := id.cm.Owner(address.Addr())
	switch ip := address.Addr(); {
	case isLinkLocal(ip) && scope == 0 && (d == nil || d.IsWired()):
		return syscall.EINVAL
	case isLinkLocal(ip) && d != nil && d.IsWired() && scope != d.Scope(ip):
		return syscall.ENODEV
	case d != nil || ip.IsUnspecified():
	case ip.IsLoopback() && !id.cm.looped():
		address = netip.AddrPortFrom(unspecified(ip.Is4()), address.Port())
	default:
		return syscall.EADDRNOTAVAIL
	}
	afOnly := id.afOnly
	id.afOnly = afOnly || address.Addr().Is4()
	if errno := id.takePort(address, claims); errno != 0 {
		id.afOnly = afOnly
		return errno
	}
	id.device, id.scope, id.state = d, scope, bound
	return 0
}

// looped reports whether a device has a loopback address. Otherwise loopback addresses stand for all addresses, as on
// Linux, where no device can have one.
func (c *Manager) looped() bool {
	return slices.ContainsFunc(c.Present(), func(d *device.Device) bool { return d.IP().IsLoopback() })
}

// resolveAddr is rdma_resolve_addr. An ID that is bound to no device uses the peer's address as its own, as Linux does
// for local addresses.
func resolveAddr(id *identifier, from, peer ibv.Ptr[rdmacm.Sockaddr], timeout int32) runtime.Errno {
	if id.state == idle && isNative(peer) {
		return syscall.ENODEV
	}
	source, to := addressAt(from), addressAt(peer)
	c := id.cm
	if !to.IsValid() || from != 0 && !source.IsValid() || id.state != idle && id.state != bound {
		return syscall.EINVAL
	}
	if to.Addr().IsUnspecified() { // the local machine
		to = netip.AddrPortFrom(loopback(to.Addr().Is4()), to.Port())
	}
	if id.state == idle {
		if !source.IsValid() {
			source = netip.AddrPortFrom(unspecified(to.Addr().Is4()), 0)
		}
		if errno := id.bind(source, scopeOf(from.Deref()), source.Port() != 0); errno != 0 {
			return errno
		}
	}
	if own := id.local.Addr(); own.Is4() != to.Addr().Is4() && !own.IsUnspecified() {
		return syscall.EINVAL
	}
	id.to, id.state = to, addrQuery
	target := c.Owner(to.Addr())
	if !id.takeScope(target, scopeOf(peer.Deref())) {
		id.state, id.to = bound, netip.AddrPort{}
		return syscall.ENETUNREACH
	}
	writeAddress(id.record.Route.Addr.DstStorage(), to, id.scope)
	if group := device.IsMulticast(to.Addr().As16()); group && id.device == nil && c.First() != nil {
		id.start(c.First(), c.First().IP())
	} else if d, own := c.Toward(to.Addr(), id.scopeTo()); !group && target == nil && d != nil && (id.device == nil ||
		id.device.IsWired()) {
		if id.device == nil {
			id.start(d, own)
		}
	} else if !group && target == nil { // without a wire, fail at once
		id.state = bound
		id.tell(rdmacm.CM_EVENT_ADDR_ERROR, -int32(syscall.EHOSTUNREACH))
		return 0
	} else if !group && (target.IsDown() || id.device != nil && id.device.IsDown()) {
		id.timer = c.After(time.Duration(max(timeout, 0))*time.Millisecond, func() {
			id.state = bound
			id.tell(rdmacm.CM_EVENT_ADDR_ERROR, -int32(syscall.ETIMEDOUT))
		})
		return 0
	} else if id.device == nil {
		id.start(target, to.Addr())
	}
	id.state = addrResolved
	id.tell(rdmacm.CM_EVENT_ADDR_RESOLVED, 0)
	return 0
}

// takeScope sets the interface for a link-local peer address, and reports whether a device with a wire is on it: the
// identifier's device if it is bound, and the peer's if it belongs to this fabric. As on Linux, local addresses need no
// zone.
func (id *identifier) takeScope(peer *device.Device, scope uint32) bool {
	to := id.to.Addr()
	if wired, _ := id.cm.Toward(to, 0); !isLinkLocal(to) || wired == nil || peer != nil && !peer.IsWired() {
		return true
	}
	if scope == 0 {
		scope = id.scope
	}
	if scope == 0 {
		return peer != nil
	}
	if there, _ := id.cm.Toward(to, scope); there == nil || peer != nil && scope != peer.Scope(to) ||
		id.device != nil && id.device.IsWired() && scope != id.device.Scope(id.local.Addr()) {
		return false
	}
	id.scope = scope
	return true
}

// scopeTo returns the interface of a link-local peer address, or 0.
func (id *identifier) scopeTo() uint32 {
	if isLinkLocal(id.to.Addr()) {
		return id.scope
	}
	return 0
}

// start selects the device of an identifier that is bound to all devices.
func (id *identifier) start(d *device.Device, own netip.Addr) {
	id.device, id.local = d, netip.AddrPortFrom(own, id.local.Port())
}

// resolveRoute is rdma_resolve_route.
func resolveRoute(id *identifier, timeout int32) runtime.Errno {
	if id.state != addrResolved {
		return syscall.EINVAL
	}
	c := id.cm
	if !c.Routes(id.device, id.local.Addr(), id.to.Addr()) {
		id.state = routeQuery
		id.timer = c.After(time.Duration(max(timeout, 0))*time.Millisecond, func() {
			id.state = addrResolved
			id.tell(rdmacm.CM_EVENT_ROUTE_ERROR, -int32(syscall.ETIMEDOUT))
		})
		return 0
	}
	id.state = routeResolved
	id.tell(rdmacm.CM_EVENT_ROUTE_RESOLVED, 0)
	return 0
}

// writeRoute writes the path to the record.
func (id *identifier) writeRoute() runtime.Errno {
	route := &id.record.Route
	if route.PathRec == 0 {
		path, errno := device.Allocate[rdmacm.IBVSAPathRec](&id.cm.Engine)
		if errno != 0 {
			return errno
		}
		route.PathRec, route.NumPaths = ibv.PtrTo(path), 1
	}
	const exactly = 2
	path := rdmacm.IBVSAPathRec{
		HopLimit: hops, TrafficClass: id.tos, Reversible: 1, NumbPath: 1, PKey: ibv.ToBE16(id.device.PKey()),
		MTUSelector: exactly, MTU: uint8(id.mtu()),
		RateSelector: exactly, Rate: ibv.RATE_100_GBPS, PacketLifeTimeSelector: exactly,
		PacketLifeTime: id.timeout - min(id.timeout, 1),
	}
	*path.SGID.Raw(), *path.DGID.Raw() = id.device.GIDAtIP(id.local.Addr()), id.gidOfPeer()
	*route.PathRec.Deref() = path
	return 0
}

// hops is the hop limit of packets.
const hops = 64

// mtu returns the largest MTU that both ends support.
func (id *identifier) mtu() ibv.MTU {
	if id.pathMTU != 0 {
		return min(id.device.MTU(), id.pathMTU)
	}
	if to := id.cm.Owner(id.to.Addr()); id.to.IsValid() && to != nil {
		return min(id.device.MTU(), to.MTU())
	}
	return id.cm.PathMTU(id.device, id.local.Addr(), id.to.Addr())
}

// av returns the address vector to a GID.
func (id *identifier) av(to [16]byte) ibv.AHAttr {
	a := ibv.AHAttr{PortNum: device.PortNum, IsGlobal: 1,
		GRH: ibv.GlobalRoute{SGIDIndex: id.device.GIDOf(id.local.Addr()), HopLimit: hops, TrafficClass: id.tos}}
	*a.GRH.DGID.Raw() = to
	return a
}
