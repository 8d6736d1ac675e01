// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
)

// Manager is the connection manager of a fabric, as its devices know it.
type Manager interface {
	// Function returns a function of librdmacm that takes no object, or nil.
	Function(name string) runtime.Func
	// Receive handles a message that came to a device. The caller holds Fabric.mu.
	Receive(at *Device, m *message.MAD)
	// Removed notifies all identifiers on a device that it is gone. The caller holds Fabric.mu.
	Removed(d *Device)
	// Cut reports that the link of a device is down: waiters get no messages from programs behind it. The caller holds
	// Fabric.mu.
	Cut(d *Device)
	// Moved notifies all identifiers bound to an address of a device that another device has it now. The caller holds
	// Fabric.mu.
	Moved(gid [16]byte, from *Device)
	// Rest closes the objects that only the connection manager has open. The caller holds Fabric.mu.
	Rest()
	// OpenChannels counts the event channels that programs have. The caller holds Fabric.mu.
	OpenChannels() int
	// AddressOwner is Fabric.AddressOwner. The caller holds Fabric.mu.
	AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string
	// Ends are those of connections that the connection manager has, by the numbers of their queue pairs. The caller
	// holds Fabric.mu.
	Ends() map[uint32]ManagedEnd
}

// ManagedEnd is the connection manager's view of one end of a connection.
type ManagedEnd struct {
	ID          uint32 // communication ID
	Local, Peer netip.AddrPort
}

// Managed is an object of the connection manager's, for Resources.
type Managed interface {
	Resource() (kind string, of *Fabric)
}

// Manage sets the fabric's connection manager. It needs no lock: nothing uses the fabric yet.
func (f *Fabric) Manage(m Manager) { f.manager = m }

// Tap puts a wire over the one that messages go by, until SetFaults. It is for tests.
func (f *Fabric) Tap(over func(wire.Wire) wire.Wire) {
	f.mu.Lock()
	defer f.unlock()
	f.wire, f.plain = over(f.wire), false
}

// unmanaged is the connection manager of a fabric that has none.
type unmanaged struct{}

func (unmanaged) Function(string) runtime.Func                     { return nil }
func (unmanaged) Receive(*Device, *message.MAD)                    {}
func (unmanaged) Removed(*Device)                                  {}
func (unmanaged) Rest()                                            {}
func (unmanaged) Cut(*Device)                                      {}
func (unmanaged) Moved([16]byte, *Device)                          {}
func (unmanaged) OpenChannels() int                                { return 0 }
func (unmanaged) AddressOwner(*rdmacm.CMID, netip.AddrPort) string { return "" }
func (unmanaged) Ends() map[uint32]ManagedEnd                      { return nil }

// AddressOwner describes the owner that keeps an ID from using an address, or returns "". It is for error texts.
func (f *Fabric) AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string {
	f.mu.Lock()
	defer f.unlock()
	return f.manager.AddressOwner(of, address)
}

// Fabric methods for the connection manager, other than its clock and its objects.

// Lock locks the fabric. It takes Fabric.mu for its caller.
func (f *Fabric) Lock() { f.mu.Lock() }

// Present are the devices, without those that were taken away. The caller holds Fabric.mu.
func (f *Fabric) Present() []*device { return f.devices }

// First is the first device, or nil. The caller holds Fabric.mu.
func (f *Fabric) First() *device {
	if len(f.devices) == 0 {
		return nil
	}
	return f.devices[0]
}

// Owner is the device that has an address, or nil. 127.0.0.1 and ::1 are the first device's where no device has them,
// unless it has a wire: then they are other places. The caller holds Fabric.mu.
func (f *Fabric) Owner(ip netip.Addr) *device {
	if d := f.gids[ip.As16()]; d != nil {
		return d
	}
	local := ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if d := f.First(); local && d != nil && !d.wired {
		return d
	}
	return nil
}

// Reach is where an address is reached: at a device of the fabric, or through the wire to others. The caller holds
// Fabric.mu.
func (f *Fabric) Reach(ip netip.Addr) (to message.Address, ok bool) {
	if d := f.Owner(ip); d != nil {
		return d.Address(), true
	}
	if f.outer == nil || !ip.IsValid() || ip.IsUnspecified() {
		return to, false
	}
	return message.Remote(ip.As16()), true
}

// Elsewhere is where an address of a device's is reached in other processes that have it, too, if there may be some.
// The caller holds Fabric.mu.
func (f *Fabric) Elsewhere(ip netip.Addr) (to message.Address, ok bool) {
	if f.outer == nil || !f.outer.IsShared(ip.As16()) {
		return to, false
	}
	return message.Remote(ip.As16()), true
}

// Claim has requests for a service that reach another process at one of the device's addresses, or, of the zero Addr,
// at any of them, come to this one. The error is EADDRINUSE if another process has one. The caller holds Fabric.mu.
func (d *device) Claim(ip netip.Addr, service uint64) (claims []*udp.Claim, err error) {
	for _, l := range d.links {
		if ip.IsValid() && !l.Has(ip.As16()) {
			continue
		}
		c, err := l.Claim(service)
		if err != nil {
			for _, c := range claims {
				c.Close()
			}
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// Claimant describes the process that has claimed a service at a shared address, or at any address, or returns "". The
// caller holds Fabric.mu.
func (f *Fabric) Claimant(ip netip.Addr, service uint64) string {
	for _, d := range f.devices {
		for _, l := range d.links {
			if who := l.Claimant(service); who != "" && (ip.IsUnspecified() || l.Has(ip.As16())) {
				return who
			}
		}
	}
	return ""
}

// Pass passes a message for a service to another process that has claimed it at the message's destination address, and
// reports whether there is one. The caller holds Fabric.mu.
func (d *device) Pass(service uint64, m *message.MAD) bool {
	return slices.ContainsFunc(d.links, func(l *roce.Link) bool { return l.Has(m.To.GID) && l.Pass(service, m) })
}

// IDOf makes a number the communication ID of an identifier on the device. The caller holds Fabric.mu.
func (d *device) IDOf(number uint32) uint32 {
	if len(d.links) == 0 || !d.links[0].IsShared() {
		return number
	}
	return udp.IDOf(d.links[0].Member(), number)
}

// Scope returns the index of the network interface that has an address of the device's, or 0: the address is one of
// IPv4, or the device has no wire.
func (d *device) Scope(ip netip.Addr) uint32 {
	for _, l := range d.links {
		if l.Has(ip.As16()) {
			return l.Scope()
		}
	}
	return 0
}

// Toward is the device with a wire to an address of another fabric, or nil; own is its address there. Where several
// have one, it is the one with the address that the kernel would send from, or else the first. A scope other than 0 is
// the interface that the device must be on. The caller holds Fabric.mu.
func (f *Fabric) Toward(ip netip.Addr, scope uint32) (d *device, own netip.Addr) {
	wired := 0
	for _, other := range f.devices {
		for _, gid := range other.gids {
			a := netip.AddrFrom16(gid).Unmap()
			if !other.wired || a.Is4() != ip.Is4() || scope != 0 && other.Scope(a) != scope {
				continue
			}
			if wired++; wired == 1 {
				d, own = other, a
			}
		}
	}
	if wired > 1 && scope == 0 {
		if from, err := udp.Source(ip); err == nil {
			if other := f.gids[from.As16()]; other != nil && other.wired {
				return other, from
			}
		}
	}
	return d, own
}

// Routes reports whether there is a path from an address of a device to another address. The caller holds Fabric.mu.
func (f *Fabric) Routes(from *device, own, to netip.Addr) bool {
	if d := f.gids[to.As16()]; d != nil {
		return f.wire.Routes(from.AddressOf(own), d.AddressOf(to))
	}
	return f.wire.Routes(from.AddressOf(own), f.addressOf(to.As16(), 0))
}

// PathMTU returns the MTU of the path from an address of a device to one of another fabric. The caller holds Fabric.mu.
func (f *Fabric) PathMTU(from *device, own, to netip.Addr) ibv.MTU {
	if f.outer == nil {
		return from.mtu
	}
	if n := f.outer.PathMTU(from.GIDAtIP(own), to.As16()); n != 0 {
		return min(from.mtu, mtuOf(n))
	}
	return from.mtu
}

// Device methods for the connection manager, other than opening it and sending messages.

func (d *device) Name() string { return text(d.record.Name[:]) }

// IsWired reports whether the device speaks to other fabrics.
func (d *device) IsWired() bool { return d.wired }

// PKey is the partition key that connections have.
func (d *device) PKey() uint16 { return d.pkeys[0] }

// GIDAtIP is the GID that an address of the device's stands for.
func (d *device) GIDAtIP(ip netip.Addr) [16]byte { return d.gids[d.GIDOf(ip)] }

// GIDOf is the index of the GID that an address of the device's stands for.
func (d *device) GIDOf(ip netip.Addr) uint8 {
	if i := slices.Index(d.gids, ip.As16()); i >= 0 && !ip.IsUnspecified() {
		return uint8(i)
	}
	for i, gid := range d.gids { // its first own address
		if isIPv4(gid) {
			return uint8(i)
		}
	}
	return 0
}

// IP is the device's first address.
func (d *device) IP() netip.Addr {
	return netip.AddrFrom16(d.gids[d.GIDOf(netip.IPv6Unspecified())]).Unmap()
}

// Address is where the device's port is.
func (d *device) Address() message.Address {
	return message.Address{Link: d.link, GID: d.gids[0]}
}

// AddressOf returns the address of the device's port for one of the device's IP addresses.
func (d *device) AddressOf(own netip.Addr) message.Address {
	return message.Address{Link: d.link, GID: d.GIDAtIP(own)}
}

// Count counts work that the connection manager did not do. The caller holds Fabric.mu.
func (d *device) Count(why counters.Counter) { d.count(why) }

// SendMAD puts a message on the wire, unless the link is down. The caller holds Fabric.mu.
func (d *device) SendMAD(m *message.MAD) {
	if !d.down {
		d.fabric.wire.SendMAD(m)
	}
}

// MAD handles a message of the connection manager that comes in, unless the link is down. The caller holds
// Fabric.mu.
func (d *device) MAD(m *message.MAD) {
	if d.down {
		d.count(counters.WhileDown)
		return
	}
	d.fabric.manager.Receive(d, m)
}

// Queue pair methods for the connection manager, other than creation, destruction and group membership.

// IsShared reports whether its receives are those of a shared receive queue.
func (q *qp) IsShared() bool { return q.srq != nil }

// Transit is ibv_modify_qp. It is called without the fabric's lock.
func (q *qp) Transit(attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	return q.modify(q.record, attr, mask)
}

// BreakNow brings it to the error state. The caller holds Fabric.mu.
func (q *qp) BreakNow() {
	if q.state != ibv.QPS_ERR {
		q.setState(ibv.QPS_ERR)
		q.record.QPBase.State = ibv.QPS_ERR
	}
}

// Connection is a connected queue pair; soft.Connection explains it.
type Connection struct {
	Device          string
	Type            ibv.QPType
	State           ibv.QPState
	QPN, PeerQPN    uint32
	Local, Peer     netip.Addr
	MTU             ibv.MTU
	NextPSN         uint32
	ExpectedPSN     uint32
	InFlight        uint32
	Window          uint32
	Queued          uint32
	SentAgain       uint64
	CMID            uint32
	CMLocal, CMPeer netip.AddrPort
}

// Connections are the connected queue pairs, by device and number.
func (f *Fabric) Connections() (all []Connection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ends := f.manager.Ends()
	for _, object := range f.numbers.All() {
		if q := object.qp; q != nil && q.kind != ibv.QPT_UD && q.state >= ibv.QPS_RTR && q.out.To.Link != 0 {
			all = append(all, q.connection(ends[q.number]))
		}
	}
	slices.SortFunc(all, func(a, b Connection) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.QPN, b.QPN))
	})
	return all
}

func (q *qp) connection(end ManagedEnd) Connection {
	c := Connection{
		Device: q.device.Name(), Type: q.kind, State: q.state, QPN: q.number, PeerQPN: q.attr.DestQPNum,
		Local: netip.AddrFrom16(q.out.From.GID).Unmap(), Peer: netip.AddrFrom16(q.out.To.GID).Unmap(),
		MTU: q.attr.PathMTU, Queued: q.posted - q.next,
		CMID: end.ID, CMLocal: end.Local, CMPeer: end.Peer,
	}
	c.NextPSN, c.ExpectedPSN = q.psns()
	c.SentAgain = q.resent
	switch {
	case q.sender != nil:
		c.Window = q.sender.Window()
		_, c.InFlight = q.sender.UnderWay()
	case q.sent:
		c.InFlight = q.out.Packets
	}
	return c
}
