// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/runtime"
)

// Manager is the interface of a fabric's connection manager to its devices.
type Manager interface {
	// Function returns a function of librdmacm that takes no object, or nil.
	Function(name string) runtime.Func
	// Receive handles a message that arrived at a device. The caller holds Core.Mu.
	Receive(at *verbs.Device, m *message.MAD)
	// Removed notifies all identifiers on a device that it is gone. The caller holds Core.Mu.
	Removed(d *verbs.Device)
	// Cut handles a device's link going down: programs beyond the link no longer answer. The caller holds Core.Mu.
	Cut(d *verbs.Device)
	// Moved notifies all identifiers bound to an address of a device that another device has it now. The caller holds
	// Core.Mu.
	Moved(gid [16]byte, from *verbs.Device)
	// Rest closes the objects that only the connection manager still holds open. The caller holds Core.Mu.
	Rest()
	// OpenChannels returns the number of event channels that programs have open. The caller holds Core.Mu.
	OpenChannels() int
	// AddressOwner implements Fabric.AddressOwner. The caller holds Core.Mu.
	AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string
	// Ends returns the connection manager's connection ends by the numbers of their queue pairs. The caller holds
	// Core.Mu.
	Ends() map[uint32]engine.ManagedEnd
}

// Manage sets the fabric's connection manager. It needs no lock: nothing uses the fabric yet.
func (f *Fabric) Manage(m Manager) { f.manager = m }

// Tap layers a wire over the current one until SetFaults is called. It is for tests.
func (f *Fabric) Tap(over func(wire.Wire) wire.Wire) {
	f.Mu.Lock()
	defer f.Unlock()
	f.Wire, f.Plain = over(f.Wire), false
}

// unmanaged is the Manager of a fabric without a connection manager.
type unmanaged struct{}

func (unmanaged) Function(string) runtime.Func                     { return nil }
func (unmanaged) Receive(*verbs.Device, *message.MAD)              {}
func (unmanaged) Removed(*verbs.Device)                            {}
func (unmanaged) Rest()                                            {}
func (unmanaged) Cut(*verbs.Device)                                {}
func (unmanaged) Moved([16]byte, *verbs.Device)                    {}
func (unmanaged) OpenChannels() int                                { return 0 }
func (unmanaged) AddressOwner(*rdmacm.CMID, netip.AddrPort) string { return "" }
func (unmanaged) Ends() map[uint32]engine.ManagedEnd               { return nil }

// AddressOwner describes the owner that keeps an ID from using an address, or returns "". It is for error texts.
func (f *Fabric) AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string {
	f.Mu.Lock()
	defer f.Unlock()
	return f.manager.AddressOwner(of, address)
}

// Fabric methods for the connection manager, other than its clock and its objects.

// Present returns the devices that have not been removed. The caller holds Core.Mu.
func (f *Fabric) Present() []*verbs.Device { return f.devices }

// First returns the first device, or nil. The caller holds Core.Mu.
func (f *Fabric) First() *verbs.Device {
	if len(f.devices) == 0 {
		return nil
	}
	return f.devices[0]
}

// Owner returns the device that has an address, or nil. 127.0.0.1 and ::1 belong to the first device if no device has
// them and the first device has no wire. The caller holds Core.Mu.
func (f *Fabric) Owner(ip netip.Addr) *verbs.Device {
	if d := f.owner(ip.As16()); d != nil {
		return d
	}
	local := ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if d := f.First(); local && d != nil && !d.Wired {
		return d
	}
	return nil
}

// Reach returns how to reach an address: at a device of the fabric, or through the wire to others. The caller holds
// Core.Mu.
func (f *Fabric) Reach(ip netip.Addr) (to message.Address, ok bool) {
	if d := f.Owner(ip); d != nil {
		return d.Address(), true
	}
	if f.Outer == nil || !ip.IsValid() || ip.IsUnspecified() {
		return to, false
	}
	return message.Remote(ip.As16()), true
}

// Elsewhere returns how to reach other processes that share an address of a device, if there may be any. The caller
// holds Core.Mu.
func (f *Fabric) Elsewhere(ip netip.Addr) (to message.Address, ok bool) {
	if f.Outer == nil || !f.Outer.IsShared(ip.As16()) {
		return to, false
	}
	return message.Remote(ip.As16()), true
}

// Claimant describes the process that has claimed a service at a shared address, or at any address, or returns "". The
// caller holds Core.Mu.
func (f *Fabric) Claimant(ip netip.Addr, service uint64) string {
	for _, d := range f.devices {
		for _, l := range d.Links {
			if who := l.Claimant(service); who != "" && (ip.IsUnspecified() || l.Has(ip.As16())) {
				return who
			}
		}
	}
	return ""
}

// Toward returns the device with a wire to an address of another fabric, or nil, and the device's own address on it.
// Among several it prefers the device with the address that the kernel would send from, and then the first. If scope is
// not 0, the device must be on that interface. The caller holds Core.Mu.
func (f *Fabric) Toward(ip netip.Addr, scope uint32) (d *verbs.Device, own netip.Addr) {
	wired := 0
	for _, other := range f.devices {
		for _, gid := range other.GIDs {
			a := netip.AddrFrom16(gid).Unmap()
			if !other.Wired || a.Is4() != ip.Is4() || scope != 0 && other.Scope(a) != scope {
				continue
			}
			if wired++; wired == 1 {
				d, own = other, a
			}
		}
	}
	if wired > 1 && scope == 0 {
		if from, err := udp.Source(ip); err == nil {
			if other := f.owner(from.As16()); other != nil && other.Wired {
				return other, from
			}
		}
	}
	return d, own
}

// Routes reports whether there is a path from an address of a device to another address. The caller holds Core.Mu.
func (f *Fabric) Routes(from *verbs.Device, own, to netip.Addr) bool {
	if d := f.GIDs[to.As16()]; d != nil {
		return f.Wire.Routes(from.AddressOf(own), d.AddressOf(to))
	}
	return f.Wire.Routes(from.AddressOf(own), f.AddressOf(to.As16(), 0))
}

// PathMTU returns the MTU of the path from an address of a device to one of another fabric. The caller holds Core.Mu.
func (f *Fabric) PathMTU(from *verbs.Device, own, to netip.Addr) ibv.MTU {
	if f.Outer == nil {
		return from.MTU
	}
	if n := f.Outer.PathMTU(from.GIDAtIP(own), to.As16()); n != 0 {
		return min(from.MTU, mtuOf(n))
	}
	return from.MTU
}

// Resources counts the fabric's objects that programs hold; see soft.Fabric.
func (f *Fabric) Resources() map[string]int { return verbs.Resources(&f.Engine) }

// Held describes the objects that programs hold; see soft.Fabric.
func (f *Fabric) Held() []string { return verbs.Held(&f.Engine) }

// Connections returns the connected queue pairs by device and number.
func (f *Fabric) Connections() (all []engine.Connection) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	ends := f.manager.Ends()
	names := map[*engine.Port]string{}
	for _, d := range slices.Concat(f.devices, f.gone) {
		names[&d.Port] = d.Name()
	}
	for _, object := range f.Numbers.All() {
		if q := object.QP; q != nil && q.Kind != ibv.QPT_UD && q.State >= ibv.QPS_RTR && q.Out.To.Link != 0 {
			c := q.Connection(ends[q.Number])
			c.Device = names[q.Port]
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b engine.Connection) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.QPN, b.QPN))
	})
	return all
}
