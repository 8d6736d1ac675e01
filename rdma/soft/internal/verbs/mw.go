// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// mw is a memory window.
type mw struct {
	*Context
	resource.Window
	record *ibv.MW
	owner  *PD
	gone   atomic.Bool // destroyed
}

// allocMW implements the slot alloc_mw.
func allocMW(p *PD, kind uint64) (uint64, runtime.Errno) {
	if ibv.MWType(kind) != ibv.MW_TYPE_1 && ibv.MWType(kind) != ibv.MW_TYPE_2 {
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.MW](p.Device)
	if errno != 0 {
		return 0, errno
	}
	w := &mw{Context: p.Context, record: record, owner: p}
	p.Device.Keys.NewWindow(&w.Window, p.domain(), ibv.MWType(kind))
	*record = ibv.MW{Context: p.Address(), PD: ibv.PtrTo(p.Record), RKey: w.Key, Handle: p.Device.handle(),
		Type: w.Kind}
	p.hold(1)
	return add(p.Context, record, w)
}

// deallocMW implements the slot dealloc_mw. It unbinds a bound window.
func deallocMW(w *mw) runtime.Errno {
	return destroy(w, w.record, never, func() {
		w.Unbind()
		w.Device.Keys.Remove(&w.Memory)
		w.owner.hold(-1)
		w.gone.Store(true)
	})
}

// lastBound caches the last window and region that were looked up. The next request mostly names them again, and then
// needs no lock.
type lastBound struct {
	window *mw
	region *Region
}

// find returns the window and the region at two addresses; either may be nil.
func (l *lastBound) find(window, of uint64) (*mw, *Region) {
	if l.window == nil || mem.AddressOf(l.window.record) != window || l.window.gone.Load() {
		l.window = Find[mw](window)
	}
	if l.region == nil || mem.AddressOf(l.region.record) != of || l.region.gone.Load() {
		if l.region = Find[Region](of); l.region != nil {
			l.region = l.region.of
		}
	}
	return l.window, l.region
}

// fillBind fills in a request to bind a window, after the checks of posting. The caller holds QP.Post.
func (q *QP) fillBind(r *engine.Request, window uint64, key uint32, info *ibv.MWBindInfo) runtime.Errno {
	w, m := q.binds.find(window, uint64(info.MR))
	if w == nil || !bindable[w.Kind][q.Kind] {
		return syscall.EINVAL
	}
	if info.MR != 0 && m == nil {
		return syscall.EINVAL
	}
	binds(r, w, m, info, key)
	return 0
}

// binds fills in the window to bind and its region, or nil to unbind.
func binds(r *engine.Request, w *mw, m *Region, info *ibv.MWBindInfo, key uint32) {
	r.Window = &w.Window
	r.Bind = resource.Binding{Address: info.Addr, Length: info.Length, Access: info.MWAccessFlags, Key: key}
	if m != nil {
		r.Bind.Region = &m.of.Region
	}
}
