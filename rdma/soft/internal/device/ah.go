// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"errors"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/runtime"
)

// ah is an address handle.
type ah struct {
	*context
	record *ibv.AH
	owner  *pd
	gid    [16]byte // where to
	route  ibv.GlobalRoute
	gone   atomic.Bool // destroyed
	to     message.Address
	moves  uint64 // Fabric.moves when to was looked up
	member int    // of the queue pair that it was looked up for
}

// gidAt is the GID of an index, if there is one.
func (d *device) gidAt(index uint8) (gid [16]byte, ok bool) {
	if int(index) >= len(d.gids) {
		return gid, false
	}
	return d.gids[index], d.gids[index] != gid
}

func createAH(of ibv.Ptr[ibv.PD], attr ibv.Ptr[ibv.AHAttr]) (uint64, runtime.Errno) {
	if attr == 0 {
		return 0, syscall.EINVAL
	}
	p := locked[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().unlock()
	return p.newAH(attr.Deref())
}

func (p *pd) newAH(attr *ibv.AHAttr) (uint64, runtime.Errno) {
	if errno := p.device.checkAH(attr); errno != 0 {
		return 0, errno
	}
	record, errno := allocate[ibv.AH](p.device)
	if errno != 0 {
		return 0, errno
	}
	h := &ah{context: p.context, record: record, owner: p, gid: *attr.GRH.DGID.Raw(), route: resolved(attr).GRH}
	record.Context, record.PD, record.Handle = p.address(), ibv.PtrTo(p.record), p.device.handle()
	p.hold(1)
	p.context.uses++
	enter(record, h)
	return addressOf(record), 0
}

// checkAH checks an address vector: over Ethernet it has to be global.
func (d *device) checkAH(attr *ibv.AHAttr) runtime.Errno {
	if attr.IsGlobal == 0 || attr.PortNum != portNum {
		return syscall.EINVAL
	}
	if _, ok := d.gidAt(attr.GRH.SGIDIndex); !ok {
		return errnos.ENODATA
	}
	if to := *attr.GRH.DGID.Raw(); d.fabric.gids[to] == nil && !isMulticast(to) && (!d.wired || to == [16]byte{}) {
		// no address resolves to it
		return syscall.EINVAL
	}
	return 0
}

// resolved is an address vector as the kernel completes it when it resolves the address.
func resolved(attr *ibv.AHAttr) ibv.AHAttr {
	to := *attr
	if !isMulticast(*to.GRH.DGID.Raw()) {
		to.GRH.HopLimit = hopLimit
	}
	return to
}

// isMulticast reports whether a GID is that of a group: of IPv6, or of IPv4 in the form that addresses of IPv4 have there.
func isMulticast(gid [16]byte) bool {
	return gid[0] == 0xff || [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff} && gid[12]&0xf0 == 0xe0
}

// resolveEthernet is ibv_resolve_eth_l2_from_gid.
func resolveEthernet(of ibv.Ptr[ibv.Context], to ibv.Ptr[ibv.AHAttr], ethernet ibv.Ptr[[6]byte],
	vlan ibv.Ptr[uint16]) runtime.Errno {
	c := find[context](of)
	if c == nil || to == 0 || ethernet == 0 || vlan == 0 {
		return syscall.EINVAL
	}
	attr := to.Deref()
	c.fabric().mu.Lock()
	defer c.fabric().unlock()
	if errno := c.device.checkAH(attr); errno != 0 {
		return errno
	}
	mac := [6]byte{0: 0x33, 1: 0x33}
	if to := c.device.fabric.gids[*attr.GRH.DGID.Raw()]; to != nil {
		mac = to.mac()
	} else {
		copy(mac[2:], attr.GRH.DGID.Raw()[12:])
	}
	*ethernet.Deref(), *vlan.Deref() = mac, noVLAN
	return 0
}

const noVLAN = 0xffff

// mac is the address of the device's port, which its GUID is made of.
func (d *device) mac() [6]byte {
	return [6]byte{byte(d.guid >> 56), byte(d.guid >> 48), byte(d.guid >> 40), byte(d.guid >> 16), byte(d.guid >> 8),
		byte(d.guid)}
}

func destroyAH(of ibv.Ptr[ibv.AH]) runtime.Errno {
	h := locked[ah](of)
	if h == nil {
		return syscall.EINVAL
	}
	defer h.fabric().unlock()
	if errno := mayGo(h.fabric(), of, h, never); errno != 0 {
		return errno
	}
	h.owner.hold(-1)
	h.context.leave()
	h.gone.Store(true)
	forget(h.record)
	return 0
}

// multicastQPN is the number of all queue pairs of a group.
const multicastQPN = 0xffffff

func attachMcast(of ibv.Ptr[ibv.QP], group ibv.Ptr[[16]byte]) runtime.Errno {
	q := lockedQP(of)
	if q == nil {
		return syscall.EINVAL
	}
	defer q.fabric().unlock()
	if group == 0 || q.kind != ibv.QPT_UD || !isMulticast(*group.Deref()) {
		return syscall.EINVAL
	}
	return q.attach(*group.Deref())
}

func (q *qp) attach(group [16]byte) runtime.Errno {
	f := q.fabric()
	if slices.Contains(f.groups[group], q) {
		return 0
	}
	same := 0 // of the group, on this device
	for _, other := range f.groups[group] {
		if other.device == q.device {
			same++
		}
	}
	has := &q.device.has
	if same == maxGroupQPs || same == 0 && has.groups == q.device.limits.groups {
		return syscall.ENOMEM
	}
	if same == 0 {
		if errno := q.device.join(group); errno != 0 {
			return errno
		}
		has.groups++
	}
	f.groups[group] = append(f.groups[group], q)
	q.groups++
	return 0
}

// join subscribes the device to messages that other fabrics send to a multicast group.
func (d *device) join(group [16]byte) runtime.Errno {
	if !d.wired || d.gone {
		return 0
	}
	for _, l := range d.links {
		if !l.Reaches(group) {
			continue
		}
		joined, err := d.fabric.outer.Join(l, group)
		if err != nil {
			errno := syscall.ENODEV // of an error of package net
			errors.As(err, &errno)
			return errno
		}
		d.joined[group] = joined
		return 0
	}
	return syscall.EAFNOSUPPORT
}

// leave undoes join.
func (d *device) leave(group [16]byte) {
	if l := d.joined[group]; l != nil {
		delete(d.joined, group)
		d.fabric.outer.Detach(l)
	}
}

func detachMcast(of ibv.Ptr[ibv.QP], group ibv.Ptr[[16]byte]) runtime.Errno {
	if group == 0 {
		return syscall.EINVAL
	}
	q := lockedQP(of)
	if q == nil {
		return syscall.EINVAL
	}
	defer q.fabric().unlock()
	return q.detach(*group.Deref())
}

func (q *qp) detach(group [16]byte) runtime.Errno {
	f := q.fabric()
	i := slices.Index(f.groups[group], q)
	if i < 0 {
		return syscall.EINVAL
	}
	f.groups[group] = slices.Delete(f.groups[group], i, i+1)
	if !slices.ContainsFunc(f.groups[group], func(other *qp) bool { return other.device == q.device }) {
		q.device.has.groups--
		q.device.leave(group)
	}
	if len(f.groups[group]) == 0 {
		delete(f.groups, group)
	}
	q.groups--
	return 0
}

// bytes is the most that a datagram has.
func (d *device) bytes() uint64 { return 128 << d.mtu }

// address is where a queue pair is to which the handle leads. It keeps the answer until a GID leads elsewhere, because
// looking it up costs a tenth of a datagram.
func (h *ah) address(qpn uint32) *message.Address {
	if f, member := h.device.fabric, udp.MemberOfQP(qpn); h.moves != f.moves || h.member != member {
		h.to, h.moves, h.member = f.addressOf(h.gid, qpn), f.moves, member
	}
	return &h.to
}

// reach maps a GID to a device, or to none.
func (f *Fabric) reach(gid [16]byte, d *device) {
	f.moves++
	if d == nil {
		delete(f.gids, gid)
		return
	}
	f.gids[gid] = d
}

// addressOf is where a queue pair is reached at a GID: the address of the group that the GID names, or of the device
// that has it, unless the queue pair is that of another process that has it, too.
func (f *Fabric) addressOf(gid [16]byte, qpn uint32) message.Address {
	if isMulticast(gid) {
		return message.Group(gid)
	}
	if d := f.gids[gid]; d != nil && (f.outer == nil || f.outer.HasQP(gid, qpn)) {
		return message.Address{Link: d.link, GID: gid}
	}
	if f.outer != nil && gid != [16]byte{} {
		return message.Remote(gid)
	}
	return message.Address{GID: gid}
}
