// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// portKey is a port of a port space. Ports belong to a fabric.
type portKey struct {
	space  rdmacm.PortSpace
	number uint16
}

// Range of ephemeral ports, as on Linux.
const (
	firstPort = 32768
	lastPort  = 60999
)

// takePort binds the identifier to an address; port 0 selects a free one. With claims, the port is claimed against
// other processes.
func (id *identifier) takePort(address netip.AddrPort, claims bool) runtime.Errno {
	c := id.cm
	if address.Port() == 0 {
		for range lastPort - firstPort + 1 {
			if c.lastPort++; c.lastPort > lastPort {
				c.lastPort = firstPort
			}
			if len(c.bound[portKey{id.space, c.lastPort}]) == 0 {
				at := netip.AddrPortFrom(address.Addr(), c.lastPort)
				if errno := id.takePort(at, claims); errno != syscall.EADDRINUSE {
					return errno
				}
			}
		}
		return syscall.EADDRNOTAVAIL
	}
	own := portKey{id.space, address.Port()}
	for _, other := range c.bound[own] {
		if id.conflicts(address.Addr(), other, false) {
			return syscall.EADDRINUSE
		}
	}
	id.local, id.port = address, own
	if claims {
		if errno := id.claimPort(); errno != 0 && !id.reuse {
			id.local, id.port = netip.AddrPort{}, portKey{}
			return errno
		}
	}
	c.bound[own] = append(c.bound[own], id)
	return 0
}

// conflicts reports whether the identifier cannot use an address because another one has its port, for the same address
// or for all addresses of the family. Identifiers with RDMA_OPTION_ID_REUSEADDR share addresses as long as none
// listens.
func (id *identifier) conflicts(ip netip.Addr, other *identifier, listens bool) bool {
	if id == other || id.reuse && other.reuse && !listens && other.state != listening {
		return false
	}
	theirs := other.local.Addr()
	if id.afOnly && other.afOnly && ip.Is4() != theirs.Is4() {
		return false
	}
	return ip.IsUnspecified() || theirs.IsUnspecified() || ip == theirs
}

// unbind releases the port.
func (id *identifier) unbind() {
	c := id.cm
	if id.port.number == 0 {
		return
	}
	id.dropClaim()
	c.bound[id.port] = slices.DeleteFunc(c.bound[id.port], func(other *identifier) bool { return other == id })
	if len(c.bound[id.port]) == 0 {
		delete(c.bound, id.port)
	}
	id.port = portKey{}
}

// listener returns the listener at an address, or at all addresses.
func (c *Manager) listener(space rdmacm.PortSpace, address netip.AddrPort) (found *identifier) {
	for _, id := range c.bound[portKey{space, address.Port()}] {
		switch own := id.local.Addr(); {
		case id.state != listening:
		case own == address.Addr():
			return id
		case own.IsUnspecified() && (own.Is4() == address.Addr().Is4() || !id.afOnly):
			found = id
		}
	}
	return found
}

// AddressOwner describes the owner of an address that an identifier cannot bind to, or returns "".
func (c *Manager) AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string {
	id := verbs.Find[identifier](mem.AddressOf(of))
	if id == nil || id.gone || id.cm != c {
		return ""
	}
	for _, other := range c.bound[portKey{id.space, address.Port()}] {
		if id.conflicts(address.Addr().Unmap(), other, true) {
			return other.describe()
		}
	}
	return c.Claimant(address.Addr().Unmap(), serviceID(id.space, address.Port()))
}

// Ends returns the ends of connections by queue pair number. The caller holds Core.Mu.
func (c *Manager) Ends() map[uint32]engine.ManagedEnd {
	all := map[uint32]engine.ManagedEnd{}
	for _, id := range c.numbered {
		if id.qpn != 0 && !id.datagrams() {
			all[id.qpn] = engine.ManagedEnd{ID: id.number, Local: id.local, Peer: id.to}
		}
	}
	return all
}

func (id *identifier) describe() string {
	does, where := "is bound to", "all devices"
	switch {
	case id.state == listening:
		does = "listens at"
	case id.to.IsValid():
		does = "connects from"
	}
	if id.device != nil {
		where = id.device.Name()
	}
	return fmt.Sprintf("used by an ID that %s %v on %s", does, id.local, where)
}
