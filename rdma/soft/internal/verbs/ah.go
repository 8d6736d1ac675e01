// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
)

// ah is an address handle of a program.
type ah struct {
	*Context
	engine.AH
	record *ibv.AH
	owner  *PD
	gone   atomic.Bool // destroyed
}

// createAH implements ibv_create_ah.
func createAH(p *PD, attr *ibv.AHAttr) (uint64, runtime.Errno) {
	if errno := p.Device.checkAH(attr); errno != 0 {
		return 0, errno
	}
	record, errno := allocate[ibv.AH](p.Device)
	if errno != 0 {
		return 0, errno
	}
	h := &ah{Context: p.Context, record: record, owner: p,
		AH: engine.AH{GID: *attr.GRH.DGID.Raw(), Route: engine.Resolved(attr).GRH}}
	record.Context, record.PD, record.Handle = p.Address(), ibv.PtrTo(p.Record), p.Device.handle()
	p.hold(1)
	return add(p.Context, record, h)
}

// checkAH checks an address vector, which must be global on Ethernet.
func (d *Device) checkAH(attr *ibv.AHAttr) runtime.Errno {
	if attr.IsGlobal == 0 || attr.PortNum != PortNum {
		return syscall.EINVAL
	}
	if _, ok := d.GIDAt(attr.GRH.SGIDIndex); !ok {
		return errnos.ENODATA
	}
	if to := *attr.GRH.DGID.Raw(); d.On.GIDs[to] == nil && !engine.IsMulticast(to) && (!d.Wired || to == [16]byte{}) {
		// no address resolves to it
		return syscall.EINVAL
	}
	return 0
}

// resolveEthernet implements ibv_resolve_eth_l2_from_gid.
func resolveEthernet(c *Context, to ibv.Ptr[ibv.AHAttr], ethernet ibv.Ptr[[6]byte],
	vlan ibv.Ptr[uint16]) runtime.Errno {
	if to == 0 || ethernet == 0 || vlan == 0 {
		return syscall.EINVAL
	}
	attr := to.Deref()
	if errno := c.Device.checkAH(attr); errno != 0 {
		return errno
	}
	mac := [6]byte{0: 0x33, 1: 0x33}
	if to := c.Device.On.GIDs[*attr.GRH.DGID.Raw()]; to != nil {
		mac = to.MAC()
	} else {
		copy(mac[2:], attr.GRH.DGID.Raw()[12:])
	}
	*ethernet.Deref(), *vlan.Deref() = mac, noVLAN
	return 0
}

const noVLAN = 0xffff

func destroyAH(h *ah) runtime.Errno {
	return destroy(h, h.record, never, func() {
		h.owner.hold(-1)
		h.gone.Store(true)
	})
}

// onGroup returns ibv_attach_mcast or ibv_detach_mcast.
func onGroup(f func(*engine.QP, [16]byte) runtime.Errno) func(ibv.Ptr[ibv.QP], ibv.Ptr[[16]byte]) runtime.Errno {
	return func(of ibv.Ptr[ibv.QP], group ibv.Ptr[[16]byte]) runtime.Errno {
		q := lockedQP(of)
		if q == nil {
			return syscall.EINVAL
		}
		defer q.Fabric().Unlock()
		if group == 0 || q.Kind != ibv.QPT_UD || !engine.IsMulticast(*group.Deref()) {
			return syscall.EINVAL
		}
		return f(&q.QP, *group.Deref())
	}
}

// replyPath returns the path back to the sender of a datagram.
func (d *Device) replyPath(port uint8, from ibv.Ptr[ibv.WC], grh ibv.Ptr[[engine.GRHSize]byte]) (attr ibv.AHAttr,
	errno runtime.Errno) {
	if port != PortNum || from == 0 {
		return attr, syscall.EINVAL
	}
	wc := from.Deref()
	attr.PortNum, attr.SL, attr.DLID, attr.SrcPathBits = PortNum, wc.SL, wc.SLID, wc.DLIDPathBits
	if wc.WCFlags&ibv.WC_GRH == 0 {
		return attr, 0
	}
	if grh == 0 {
		return attr, syscall.EINVAL
	}
	route, own, errno := engine.ReadGRH(grh.Deref())
	if errno != 0 {
		return attr, errno
	}
	index := slices.Index(d.GIDs, own)
	if index < 0 {
		return attr, syscall.EINVAL
	}
	route.SGIDIndex = uint8(index)
	attr.IsGlobal, attr.GRH = 1, route
	return attr, 0
}

// initAH implements ibv_init_ah_from_wc.
func initAH(c *Context, port uint8, wc ibv.Ptr[ibv.WC], grh ibv.Ptr[[engine.GRHSize]byte],
	to ibv.Ptr[ibv.AHAttr]) runtime.Errno {
	attr, errno := c.Device.replyPath(port, wc, grh)
	switch {
	case errno != 0:
		return errno
	case to == 0:
		return syscall.EINVAL
	}
	*to.Deref() = attr
	return 0
}

func createAHFromWC(p *PD, wc ibv.Ptr[ibv.WC], grh ibv.Ptr[[engine.GRHSize]byte], port uint8) (uint64,
	runtime.Errno) {
	attr, errno := p.Device.replyPath(port, wc, grh)
	if errno != 0 {
		return 0, errno
	}
	return createAH(p, &attr)
}
