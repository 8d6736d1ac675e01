// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// ah is an address handle as programs know it.
type ah struct {
	*context
	AH
	record *ibv.AH
	owner  *pd
	gone   atomic.Bool // destroyed
}

func createAH(of ibv.Ptr[ibv.PD], attr ibv.Ptr[ibv.AHAttr]) (uint64, runtime.Errno) {
	if attr == 0 {
		return 0, syscall.EINVAL
	}
	p := locked[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
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
	h := &ah{context: p.context, record: record, owner: p, AH: AH{gid: *attr.GRH.DGID.Raw(), route: resolved(attr).GRH}}
	record.Context, record.PD, record.Handle = p.address(), ibv.PtrTo(p.record), p.device.handle()
	p.hold(1)
	p.context.uses++
	enter(record, h)
	return mem.AddressOf(record), 0
}

// checkAH checks an address vector: over Ethernet it has to be global.
func (d *device) checkAH(attr *ibv.AHAttr) runtime.Errno {
	if attr.IsGlobal == 0 || attr.PortNum != portNum {
		return syscall.EINVAL
	}
	if _, ok := d.gidAt(attr.GRH.SGIDIndex); !ok {
		return errnos.ENODATA
	}
	if to := *attr.GRH.DGID.Raw(); d.on.gids[to] == nil && !isMulticast(to) && (!d.wired || to == [16]byte{}) {
		// no address resolves to it
		return syscall.EINVAL
	}
	return 0
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
	defer c.fabric().Unlock()
	if errno := c.device.checkAH(attr); errno != 0 {
		return errno
	}
	mac := [6]byte{0: 0x33, 1: 0x33}
	if to := c.device.on.gids[*attr.GRH.DGID.Raw()]; to != nil {
		mac = to.mac()
	} else {
		copy(mac[2:], attr.GRH.DGID.Raw()[12:])
	}
	*ethernet.Deref(), *vlan.Deref() = mac, noVLAN
	return 0
}

const noVLAN = 0xffff

func destroyAH(of ibv.Ptr[ibv.AH]) runtime.Errno {
	h := locked[ah](of)
	if h == nil {
		return syscall.EINVAL
	}
	defer h.fabric().Unlock()
	if errno := mayGo(h.fabric(), of, h, never); errno != 0 {
		return errno
	}
	h.owner.hold(-1)
	h.context.leave()
	h.gone.Store(true)
	forget(h.record)
	return 0
}

func attachMcast(of ibv.Ptr[ibv.QP], group ibv.Ptr[[16]byte]) runtime.Errno {
	q := lockedQP(of)
	if q == nil {
		return syscall.EINVAL
	}
	defer q.fabric().Unlock()
	if group == 0 || q.kind != ibv.QPT_UD || !isMulticast(*group.Deref()) {
		return syscall.EINVAL
	}
	return q.attach(*group.Deref())
}

func detachMcast(of ibv.Ptr[ibv.QP], group ibv.Ptr[[16]byte]) runtime.Errno {
	if group == 0 {
		return syscall.EINVAL
	}
	q := lockedQP(of)
	if q == nil {
		return syscall.EINVAL
	}
	defer q.fabric().Unlock()
	return q.detach(*group.Deref())
}

// back is the path back to the sender of a datagram.
func (d *device) back(wc *ibv.WC, grh ibv.Ptr[[grhSize]byte]) (attr ibv.AHAttr, errno runtime.Errno) {
	attr.PortNum, attr.SL, attr.DLID, attr.SrcPathBits = portNum, wc.SL, wc.SLID, wc.DLIDPathBits
	if wc.WCFlags&ibv.WC_GRH == 0 {
		return attr, 0
	}
	if grh == 0 {
		return attr, syscall.EINVAL
	}
	route, own, errno := readGRH(grh.Deref())
	if errno != 0 {
		return attr, errno
	}
	index := slices.Index(d.gids, own)
	if index < 0 {
		return attr, syscall.EINVAL
	}
	route.SGIDIndex = uint8(index)
	attr.IsGlobal, attr.GRH = 1, route
	return attr, 0
}

// initAH is ibv_init_ah_from_wc.
func initAH(of ibv.Ptr[ibv.Context], port uint8, wc ibv.Ptr[ibv.WC], grh ibv.Ptr[[grhSize]byte],
	to ibv.Ptr[ibv.AHAttr]) runtime.Errno {
	c := find[context](of)
	if c == nil || port != portNum || wc == 0 || to == 0 {
		return syscall.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().mu.Unlock()
	attr, errno := c.device.back(wc.Deref(), grh)
	if errno != 0 {
		return errno
	}
	*to.Deref() = attr
	return 0
}

func createAHFromWC(of ibv.Ptr[ibv.PD], wc ibv.Ptr[ibv.WC], grh ibv.Ptr[[grhSize]byte], port uint8) (uint64,
	runtime.Errno) {
	if wc == 0 || port != portNum {
		return 0, syscall.EINVAL
	}
	p := locked[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
	attr, errno := p.device.back(wc.Deref(), grh)
	if errno != 0 {
		return 0, errno
	}
	return p.newAH(&attr)
}
