package soft

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// manager is the connection manager of a fabric, as its devices know it. All of it but function is called with the fabric's lock.
type manager interface {
	// function gives the functions of librdmacm that take no object, or nil.
	function(name string) runtime.Func
	// receive handles a message that came to a device.
	receive(at *device, m *message.MAD)
	// removed tells all identifiers on a device that it is gone.
	removed(d *device)
	// moved tells all identifiers that are bound to an address of a device that another one has it now.
	moved(gid [16]byte, from *device)
	// openChannels counts the event channels that programs have.
	openChannels() int
	// addressOwner is Fabric.AddressOwner.
	addressOwner(of *rdmacm.CMID, address netip.AddrPort) string
}

// managed is an object of the connection manager's, for Resources.
type managed interface {
	resource() (kind string, of *Fabric)
}

// AddressOwner says what keeps an ID from having an address; "" is nothing. It is for error texts.
func (f *Fabric) AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string {
	f.mu.Lock()
	defer f.unlock()
	return f.manager.addressOwner(of, address)
}

// What the connection manager asks of a fabric, beside its clock and its objects.

func (f *Fabric) lock() { f.mu.Lock() }

// present are the devices, without those that were taken away.
func (f *Fabric) present() []*device { return f.devices }

// first is the first device, or nil.
func (f *Fabric) first() *device {
	if len(f.devices) == 0 {
		return nil
	}
	return f.devices[0]
}

// owner is the device that has an address, or nil. 127.0.0.1 and ::1 are the first device's where no device has them.
func (f *Fabric) owner(ip netip.Addr) *device {
	if d := f.gids[ip.As16()]; d != nil {
		return d
	}
	if ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		return f.first()
	}
	return nil
}

// routes says whether there is a path from a device to an address.
func (f *Fabric) routes(from *device, to netip.Addr) bool {
	return f.wire.Routes(from.address(), f.addressOf(to.As16()))
}

// What it asks of a device, beside opening it and sending messages.

func (d *device) name() string { return text(d.record.Name[:]) }

// pkey is the partition key that connections have.
func (d *device) pkey() uint16 { return d.pkeys[0] }

// gidAtIP is the GID that an address of the device's stands for.
func (d *device) gidAtIP(ip netip.Addr) [16]byte { return d.gids[d.gidOf(ip)] }

// gidOf is the index of the GID that an address of the device's stands for.
func (d *device) gidOf(ip netip.Addr) uint8 {
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

// ip is the device's first address.
func (d *device) ip() netip.Addr {
	return netip.AddrFrom16(d.gids[d.gidOf(netip.IPv6Unspecified())]).Unmap()
}

// address is where the device's port is.
func (d *device) address() message.Address {
	return message.Address{Link: d.link, GID: d.gids[0]}
}

// sendMAD gives a message to the wire, unless the link is down.
func (d *device) sendMAD(m *message.MAD) {
	if !d.down || m.IsHint() {
		d.fabric.wire.SendMAD(m)
	}
}

// MAD handles a message of the connection manager that comes in, unless the link is down. The caller holds
// Fabric.mu.
func (d *device) MAD(m *message.MAD) {
	if !d.down || m.IsHint() {
		d.fabric.manager.receive(d, m)
	}
}

// What it asks of a queue pair, beside making and destroying it and its membership of groups.

// isShared says whether its receives are those of a shared receive queue.
func (q *qp) isShared() bool { return q.srq != nil }

// transit is ibv_modify_qp. It is called without the fabric's lock.
func (q *qp) transit(attr *ibv.QPAttr, mask ibv.QPAttrMask) runtime.Errno {
	return q.modify(q.record, attr, mask)
}

// breakNow brings it to the error state. It is called with the fabric's lock.
func (q *qp) breakNow() {
	if q.state != ibv.QPS_ERR {
		q.setState(ibv.QPS_ERR)
		q.record.QPBase.State = ibv.QPS_ERR
	}
}
