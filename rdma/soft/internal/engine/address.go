// SPDX-License-Identifier: BSD-2-Clause

package engine

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
)

// GIDAt returns the GID at an index, if there is one.
func (d *Port) GIDAt(index uint8) (gid [16]byte, ok bool) {
	if int(index) >= len(d.GIDs) {
		return gid, false
	}
	return d.GIDs[index], d.GIDs[index] != gid
}

// HopLimit is the hop limit of unicast paths, which the kernel sets for RoCE when it resolves the address. Multicast
// uses the program's value.
const HopLimit = 64

// Resolved is an address vector as the kernel completes it when it resolves the address.
func Resolved(attr *ibv.AHAttr) ibv.AHAttr {
	to := *attr
	if !IsMulticast(*to.GRH.DGID.Raw()) {
		to.GRH.HopLimit = HopLimit
	}
	return to
}

// IsMulticast reports whether a GID is an IPv6 multicast address, or an IPv4-mapped one.
func IsMulticast(gid [16]byte) bool {
	return gid[0] == 0xff || [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff} && gid[12]&0xf0 == 0xe0
}

// MAC returns the Ethernet address of the device's port, from which its GUID is derived.
func (d *Port) MAC() [6]byte {
	return [6]byte{byte(d.GUID >> 56), byte(d.GUID >> 48), byte(d.GUID >> 40), byte(d.GUID >> 16), byte(d.GUID >> 8),
		byte(d.GUID)}
}

// bytes returns the maximum size of a datagram.
func (d *Port) bytes() uint64 { return 128 << d.MTU }

// address returns the address of a queue pair at the handle's destination. It caches the result until a GID moves.
func (h *AH) address(e *Engine, qpn uint32) *message.Address {
	if member := udp.MemberOfQP(qpn); h.moves != e.Moves || h.member != member {
		h.to, h.moves, h.member = e.AddressOf(h.GID, qpn), e.Moves, member
	}
	return &h.to
}

// Assign maps a GID to a device, or to none.
func (e *Engine) Assign(gid [16]byte, p *Port) {
	e.Moves++
	if p == nil {
		delete(e.GIDs, gid)
		return
	}
	e.GIDs[gid] = p
}

// AddressOf returns the address of a queue pair at a GID: that of the multicast group or of the device with the GID,
// unless the queue pair belongs to another process that shares the GID.
func (e *Engine) AddressOf(gid [16]byte, qpn uint32) message.Address {
	if IsMulticast(gid) {
		return message.Group(gid)
	}
	if p := e.GIDs[gid]; p != nil && (e.Outer == nil || e.Outer.HasQP(gid, qpn)) {
		return message.Address{Link: p.Link, GID: gid}
	}
	if e.Outer != nil && gid != [16]byte{} {
		return message.Remote(gid)
	}
	return message.Address{GID: gid}
}

// Claim makes other processes pass this one the requests for a service that arrive at one of the device's addresses, or
// with the zero Addr at any of them. It returns EADDRINUSE if another process has claimed the service. The caller holds
// Core.Mu.
func (p *Port) Claim(ip netip.Addr, service uint64) (claims []*udp.Claim, err error) {
	for _, l := range p.Links {
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
// reports whether there is one. The caller holds Core.Mu.
func (p *Port) Pass(service uint64, m *message.MAD) bool {
	return slices.ContainsFunc(p.Links, func(l *roce.Link) bool { return l.Has(m.To.GID) && l.Pass(service, m) })
}

// IDOf converts a number to a communication ID of an identifier on the device. The caller holds Core.Mu.
func (p *Port) IDOf(number uint32) uint32 {
	if len(p.Links) == 0 || !p.Links[0].IsShared() {
		return number
	}
	return udp.IDOf(p.Links[0].Member(), number)
}

// Scope returns the index of the network interface that has an address of the device's, or 0: the address is one of
// IPv4, or the device has no wire.
func (p *Port) Scope(ip netip.Addr) uint32 {
	for _, l := range p.Links {
		if l.Has(ip.As16()) {
			return l.Scope()
		}
	}
	return 0
}

// IsWired reports whether the device communicates with other fabrics.
func (p *Port) IsWired() bool { return p.Wired }

// PKey returns the partition key of connections.
func (p *Port) PKey() uint16 { return p.PKeys[0] }

// GIDAtIP returns the GID for an IP address of the device.
func (p *Port) GIDAtIP(ip netip.Addr) [16]byte { return p.GIDs[p.GIDOf(ip)] }

// GIDOf returns the index of the GID for an IP address of the device.
func (p *Port) GIDOf(ip netip.Addr) uint8 {
	if i := slices.Index(p.GIDs, ip.As16()); i >= 0 && !ip.IsUnspecified() {
		return uint8(i)
	}
	for i, gid := range p.GIDs { // its first own address
		if isIPv4(gid) {
			return uint8(i)
		}
	}
	return 0
}

// IP returns the device's first IP address.
func (p *Port) IP() netip.Addr {
	return netip.AddrFrom16(p.GIDs[p.GIDOf(netip.IPv6Unspecified())]).Unmap()
}

// Address returns the address of the device's port.
func (p *Port) Address() message.Address {
	return message.Address{Link: p.Link, GID: p.GIDs[0]}
}

// AddressOf returns the address of the device's port for one of the device's IP addresses.
func (p *Port) AddressOf(own netip.Addr) message.Address {
	return message.Address{Link: p.Link, GID: p.GIDAtIP(own)}
}

// MulticastQPN is the queue pair number that addresses all members of a multicast group.
const MulticastQPN = 0xffffff

// Attach adds the queue pair to a multicast group. The caller holds Core.Mu.
func (q *QP) Attach(group [16]byte) runtime.Errno {
	e, p := q.On, q.Port
	if slices.Contains(e.groups[group], q) {
		return 0
	}
	same := 0 // of the group, on this device
	for _, other := range e.groups[group] {
		if other.Port == p {
			same++
		}
	}
	if same == MaxGroupQPs || same == 0 && p.Groups == p.MostGroups {
		return syscall.ENOMEM
	}
	if same == 0 {
		if errno := p.join(group); errno != 0 {
			return errno
		}
		p.Groups++
	}
	e.groups[group] = append(e.groups[group], q)
	q.Groups++
	return 0
}

// join subscribes the device to messages that other fabrics send to a multicast group.
func (d *Port) join(group [16]byte) runtime.Errno {
	if !d.Wired || d.Gone {
		return 0
	}
	for _, l := range d.Links {
		if !l.Reaches(group) {
			continue
		}
		joined, err := d.On.Outer.Join(l, group)
		if err != nil {
			errno := syscall.ENODEV // of an error of package net
			errors.As(err, &errno)
			return errno
		}
		d.Joined[group] = joined
		return 0
	}
	return syscall.EAFNOSUPPORT
}

// leave undoes join.
func (d *Port) leave(group [16]byte) {
	if l := d.Joined[group]; l != nil {
		delete(d.Joined, group)
		d.On.Outer.Detach(l)
	}
}

// Detach removes the queue pair from a multicast group. The caller holds Core.Mu.
func (q *QP) Detach(group [16]byte) runtime.Errno {
	e, p := q.On, q.Port
	i := slices.Index(e.groups[group], q)
	if i < 0 {
		return syscall.EINVAL
	}
	e.groups[group] = slices.Delete(e.groups[group], i, i+1)
	if !slices.ContainsFunc(e.groups[group], func(other *QP) bool { return other.Port == p }) {
		p.Groups--
		p.leave(group)
	}
	if len(e.groups[group]) == 0 {
		delete(e.groups, group)
	}
	q.Groups--
	return 0
}
