// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// mw is a memory window.
type mw struct {
	*context
	resource.Window
	record *ibv.MW
	owner  *pd
	gone   atomic.Bool // destroyed
}

// allocMW is the slot alloc_mw.
func allocMW(domain, kind, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if ibv.MWType(kind) != ibv.MW_TYPE_1 && ibv.MWType(kind) != ibv.MW_TYPE_2 {
		return 0, syscall.EINVAL
	}
	p := locked[pd](domain)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
	record, errno := allocate[ibv.MW](p.device)
	if errno != 0 {
		return 0, errno
	}
	w := &mw{context: p.context, record: record, owner: p}
	p.device.keys.NewWindow(&w.Window, p.protects(), ibv.MWType(kind))
	*record = ibv.MW{Context: p.address(), PD: ibv.PtrTo(p.record), RKey: w.Key, Handle: p.device.handle(),
		Type: w.Kind}
	p.hold(1)
	p.context.uses++
	enter(record, w)
	return mem.AddressOf(record), 0
}

// deallocMW is the slot dealloc_mw. A window that is bound is unbound.
func deallocMW(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	w := locked[mw](address)
	if w == nil {
		return uint64(syscall.EINVAL), 0
	}
	defer w.fabric().Unlock()
	if errno := mayGo(w.fabric(), address, w, never); errno != 0 {
		return uint64(errno), 0
	}
	w.Unbind()
	w.device.keys.Remove(&w.Memory)
	w.owner.hold(-1)
	w.context.leave()
	w.gone.Store(true)
	forget(w.record)
	return 0, 0
}

// lastBound are a window and a region that were looked up. Mostly the next request names them again, and then they are
// found without a lock.
type lastBound struct {
	window *mw
	region *region
}

// find is the window and the region at two addresses; either may be nil.
func (l *lastBound) find(window, of uint64) (*mw, *region) {
	if l.window == nil || mem.AddressOf(l.window.record) != window || l.window.gone.Load() {
		l.window = find[mw](window)
	}
	if l.region == nil || mem.AddressOf(l.region.record) != of || l.region.gone.Load() {
		if l.region = find[region](of); l.region == nil {
			l.region = importedRegion(of)
		}
	}
	return l.window, l.region
}

// fillBind checks a request to bind a window, as far as that is done when it is posted. The caller holds qp.post.
func (q *qp) fillBind(r *request, window uint64, key uint32, info *ibv.MWBindInfo) runtime.Errno {
	w, m := q.binds.find(window, uint64(info.MR))
	if w == nil || refused(ibv.BindMWValidity(w.Kind, ibv.BindMWPostSend, q.kind)) {
		return syscall.EINVAL
	}
	if info.MR != 0 && m == nil {
		return syscall.EINVAL
	}
	binds(r, w, m, info, key)
	return 0
}

// binds fills in the window to bind and its region, or nil to unbind.
func binds(r *request, w *mw, m *region, info *ibv.MWBindInfo, key uint32) {
	r.window = &w.Window
	r.bind = resource.Binding{Address: info.Addr, Length: info.Length, Access: info.MWAccessFlags, Key: key}
	if m != nil {
		r.bind.Region = &m.Region
	}
}
