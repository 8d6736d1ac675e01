package soft

import (
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// cm is the connection manager of a fabric. Everything of it is under the fabric's lock.
type cm struct {
	response time.Duration // a message is sent again after it
	ids      []*cmID       // all of them, in the order in which they were made
	bound    map[cmPort][]*cmID
	lastPort uint16 // that was given to who asked for any
	devices  map[*device]*cmDevice
	remote   map[cmRemote]*cmID // who is connected to a queue pair elsewhere
	channels int
	psn      uint32
}

// What Linux does: a message is sent again after 4.096 µs · 2²⁰, 15 times; an answer of a program that has the message may take as long as all
// of that together.
const (
	cmResponse = 4096 << 20 * time.Nanosecond
	cmRetries  = 15
	cmTimeout  = 17 // of queue pairs, where nobody sets another one: 0.54 s
)

func newCM(o Options) cm {
	c := cm{response: o.CMResponse, bound: map[cmPort][]*cmID{}, devices: map[*device]*cmDevice{}, remote: map[cmRemote]*cmID{}, lastPort: firstPort - 1}
	if c.response <= 0 {
		c.response = cmResponse
	}
	return c
}

// owner is the device that has an address, or nil. 127.0.0.1 and ::1 are the first device's where no device has them.
func (f *Fabric) owner(ip netip.Addr) *device {
	if d := f.gids[ip.As16()]; d != nil {
		return d
	}
	if (ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1})) && len(f.devices) > 0 {
		return f.devices[0]
	}
	return nil
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

// carry brings a message from one device to another, as a network does: it may be lost, late, or come twice.
func (f *Fabric) carry(from, to *device, arrive func()) {
	if from == nil || to == nil || from.down || to.down {
		return
	}
	f.faulty.Carry(func() {
		if !from.down && !to.down {
			arrive()
		}
	})
}

// exchange is a message that is sent until it is answered.
type exchange struct {
	send  func()
	fail  func()
	sent  int
	timer uint64 // 0 for none
}

// exchange sends a message, and again until conclude. When it was sent often enough, fail is called instead.
func (id *cmID) exchange(send, fail func()) {
	id.conclude()
	id.asked = &exchange{send: send, fail: fail}
	id.ask()
}

func (id *cmID) ask() {
	x := id.asked
	if x.sent > cmRetries {
		id.asked = nil
		x.fail()
		return
	}
	x.sent++
	x.timer = id.fabric.after(id.fabric.cm.response, id.ask) // before: the answer may come at once
	x.send()
}

// conclude says that the answer came, or is not waited for any more.
func (id *cmID) conclude() {
	if id.asked != nil {
		id.fabric.cancel(id.asked.timer)
		id.asked = nil
	}
}

// heard says that the other side's program has the message: it is not sent again, and the answer has time. A virtual clock stands still for
// programs: it does not know whether they are at work.
func (id *cmID) heard() {
	x, f := id.asked, id.fabric
	if x == nil {
		return
	}
	f.cancel(x.timer)
	x.timer = 0
	if !f.clock.virtual {
		x.timer = f.after((cmRetries+1)*f.cm.response, func() {
			id.asked = nil
			x.fail()
		})
	}
}

// answered says that the other side answers. Where the answer is lost, the message is sent again.
func (id *cmID) answered() {
	if x := id.asked; x != nil {
		id.fabric.cancel(x.timer)
		x.sent, x.timer = 0, id.fabric.after(id.fabric.cm.response, id.ask)
	}
}

// cmRemote is a queue pair of a connection's other end.
type cmRemote struct {
	device *device
	number uint32
}

// cmState is how far an identifier has come.
type cmState uint8

const (
	cmIdle cmState = iota
	cmBound
	cmAddrQuery
	cmAddrResolved
	cmRouteQuery
	cmRouteResolved
	cmListening
	cmRequesting  // a request was sent
	cmRequested   // one came in
	cmAccepting   // it was answered
	cmAnswered    // the answer came in
	cmEstablished // or a lookup has its answer
	cmLeaving     // the end was said
	cmLeft        // the other side said so
	cmOver        // both have, or it came to nothing
)

// portSpaceKind says whether a port space is one, and whether it is of datagrams.
func portSpaceKind(ps rdmacm.PortSpace) (datagrams, ok bool) {
	switch ps {
	case rdmacm.PS_TCP, rdmacm.PS_IB:
		return false, true
	case rdmacm.PS_UDP, rdmacm.PS_IPOIB:
		return true, true
	}
	return false, false
}

// MAD takes a datagram of the connection manager.
func (d *device) MAD(*message.MAD) {}
