package soft

import (
	"net/netip"
	"slices"

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

// MAD handles a message of the connection manager that comes in, unless the link is down.
func (d *device) MAD(m *message.MAD) {
	if !d.down || m.IsHint() {
		d.fabric.manager.receive(d, m)
	}
}
