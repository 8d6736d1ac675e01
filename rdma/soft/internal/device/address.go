// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
)

// AH is the path that an address handle stands for.
type AH struct {
	gid    [16]byte // where to
	route  ibv.GlobalRoute
	to     message.Address
	moves  uint64 // Engine.moves when to was looked up
	member int    // of the queue pair that it was looked up for
}

// gidAt is the GID of an index, if there is one.
func (d *Port) gidAt(index uint8) (gid [16]byte, ok bool) {
	if int(index) >= len(d.gids) {
		return gid, false
	}
	return d.gids[index], d.gids[index] != gid
}

// hopLimit is that of paths to one device, which the kernel chooses for RoCE when it resolves the address. To groups, it
// is the program's.
const hopLimit = 64

// resolved is an address vector as the kernel completes it when it resolves the address.
func resolved(attr *ibv.AHAttr) ibv.AHAttr {
	to := *attr
	if !isMulticast(*to.GRH.DGID.Raw()) {
		to.GRH.HopLimit = hopLimit
	}
	return to
}

// isMulticast reports whether a GID is that of a group: of IPv6, or of IPv4 in the form that addresses of IPv4 have
// there.
func isMulticast(gid [16]byte) bool {
	return gid[0] == 0xff || [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff} && gid[12]&0xf0 == 0xe0
}

// mac is the address of the device's port, which its GUID is made of.
func (d *Port) mac() [6]byte {
	return [6]byte{byte(d.guid >> 56), byte(d.guid >> 48), byte(d.guid >> 40), byte(d.guid >> 16), byte(d.guid >> 8),
		byte(d.guid)}
}

// bytes is the most that a datagram has.
func (d *Port) bytes() uint64 { return 128 << d.mtu }

// address is where a queue pair is to which the handle leads. It keeps the answer until a GID leads elsewhere, because
// looking it up costs a tenth of a datagram.
func (h *AH) address(e *Engine, qpn uint32) *message.Address {
	if member := udp.MemberOfQP(qpn); h.moves != e.moves || h.member != member {
		h.to, h.moves, h.member = e.addressOf(h.gid, qpn), e.moves, member
	}
	return &h.to
}

// reach maps a GID to a device, or to none.
func (e *Engine) reach(gid [16]byte, p *Port) {
	e.moves++
	if p == nil {
		delete(e.gids, gid)
		return
	}
	e.gids[gid] = p
}

// addressOf is where a queue pair is reached at a GID: the address of the group that the GID names, or of the device
// that has it, unless the queue pair is that of another process that has it, too.
func (e *Engine) addressOf(gid [16]byte, qpn uint32) message.Address {
	if isMulticast(gid) {
		return message.Group(gid)
	}
	if p := e.gids[gid]; p != nil && (e.outer == nil || e.outer.HasQP(gid, qpn)) {
		return message.Address{Link: p.link, GID: gid}
	}
	if e.outer != nil && gid != [16]byte{} {
		return message.Remote(gid)
	}
	return message.Address{GID: gid}
}

// Claim has requests for a service that reach another process at one of the device's addresses, or, of the zero Addr,
// at any of them, come to this one. The error is EADDRINUSE if another process has one. The caller holds Fabric.mu.
func (p *Port) Claim(ip netip.Addr, service uint64) (claims []*udp.Claim, err error) {
	for _, l := range p.links {
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

// Pass passes a message for a service to another process that has claimed it at the message's destination address, and
// reports whether there is one. The caller holds Fabric.mu.
func (p *Port) Pass(service uint64, m *message.MAD) bool {
	return slices.ContainsFunc(p.links, func(l *roce.Link) bool { return l.Has(m.To.GID) && l.Pass(service, m) })
}

// IDOf makes a number the communication ID of an identifier on the device. The caller holds Fabric.mu.
func (p *Port) IDOf(number uint32) uint32 {
	if len(p.links) == 0 || !p.links[0].IsShared() {
		return number
	}
	return udp.IDOf(p.links[0].Member(), number)
}

// Scope returns the index of the network interface that has an address of the device's, or 0: the address is one of
// IPv4, or the device has no wire.
func (p *Port) Scope(ip netip.Addr) uint32 {
	for _, l := range p.links {
		if l.Has(ip.As16()) {
			return l.Scope()
		}
	}
	return 0
}

// IsWired reports whether the device speaks to other fabrics.
func (p *Port) IsWired() bool { return p.wired }

// PKey is the partition key that connections have.
func (p *Port) PKey() uint16 { return p.pkeys[0] }

// GIDAtIP is the GID that an address of the device's stands for.
func (p *Port) GIDAtIP(ip netip.Addr) [16]byte { return p.gids[p.GIDOf(ip)] }

// GIDOf is the index of the GID that an address of the device's stands for.
func (p *Port) GIDOf(ip netip.Addr) uint8 {
	if i := slices.Index(p.gids, ip.As16()); i >= 0 && !ip.IsUnspecified() {
		return uint8(i)
	}
	for i, gid := range p.gids { // its first own address
		if isIPv4(gid) {
			return uint8(i)
		}
	}
	return 0
}

// IP is the device's first address.
func (p *Port) IP() netip.Addr {
	return netip.AddrFrom16(p.gids[p.GIDOf(netip.IPv6Unspecified())]).Unmap()
}

// Address is where the device's port is.
func (p *Port) Address() message.Address {
	return message.Address{Link: p.link, GID: p.gids[0]}
}

// AddressOf returns the address of the device's port for one of the device's IP addresses.
func (p *Port) AddressOf(own netip.Addr) message.Address {
	return message.Address{Link: p.link, GID: p.GIDAtIP(own)}
}
