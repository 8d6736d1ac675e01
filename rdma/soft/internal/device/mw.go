// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// mw is a memory window.
type mw struct {
	*context
	memory
	record *ibv.MW
	owner  *pd
	kind   ibv.MWType
	region *region     // that it is bound to, or nil
	gone   atomic.Bool // destroyed
}

// binding is what a window is to be bound to.
type binding struct {
	region          *region
	address, length uint64
	access          ibv.AccessFlags
	key             uint32 // of a window of type 2
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
	defer p.fabric().unlock()
	record, errno := allocate[ibv.MW](p.device)
	if errno != 0 {
		return 0, errno
	}
	w := &mw{context: p.context, record: record, owner: p, kind: ibv.MWType(kind)}
	w.memory = memory{pd: p.protects(), window: w}
	p.device.keys.add(&w.memory)
	*record = ibv.MW{Context: p.address(), PD: ibv.PtrTo(p.record), RKey: w.key, Handle: p.device.handle(),
		Type: w.kind}
	p.hold(1)
	p.context.uses++
	enter(record, w)
	return addressOf(record), 0
}

// deallocMW is the slot dealloc_mw. A window that is bound is unbound.
func deallocMW(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	w := locked[mw](address)
	if w == nil {
		return uint64(syscall.EINVAL), 0
	}
	defer w.fabric().unlock()
	if errno := mayGo(w.fabric(), address, w, never); errno != 0 {
		return uint64(errno), 0
	}
	w.unbind()
	w.device.keys.remove(&w.memory)
	w.owner.hold(-1)
	w.context.leave()
	w.gone.Store(true)
	forget(w.record)
	return 0, 0
}

// unbind ends what the window lets in.
func (w *mw) unbind() {
	if w.region != nil {
		w.region.windows--
		w.region = nil
	}
	if w.bound != nil {
		w.bound.windows--
		w.bound = nil
	}
	w.start, w.length, w.base, w.access = 0, 0, 0, 0
}

// lastBound are a window and a region that were looked up. Mostly the next request names them again, and then they are
// found without a lock.
type lastBound struct {
	window *mw
	region *region
}

// find is the window and the region at two addresses; either may be nil.
func (l *lastBound) find(window, of uint64) (*mw, *region) {
	if l.window == nil || addressOf(l.window.record) != window || l.window.gone.Load() {
		l.window = find[mw](window)
	}
	if l.region == nil || addressOf(l.region.record) != of || l.region.gone.Load() {
		if l.region = find[region](of); l.region == nil {
			l.region = importedRegion(of)
		}
	}
	return l.window, l.region
}

// fillBind checks a request to bind a window, as far as that is done when it is posted. The caller holds qp.post.
func (q *qp) fillBind(r *request, window uint64, key uint32, info *ibv.MWBindInfo) runtime.Errno {
	w, m := q.binds.find(window, uint64(info.MR))
	if w == nil || refused(ibv.BindMWValidity(w.kind, ibv.BindMWPostSend, q.kind)) {
		return syscall.EINVAL
	}
	r.window, r.bind = w, binding{m, info.Addr, info.Length, info.MWAccessFlags, key}
	if info.MR != 0 && m == nil {
		return syscall.EINVAL
	}
	return 0
}

// mwAccess are the flags that windows can have.
const mwAccess = regionAccess | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
	ibv.ACCESS_ZERO_BASED

// bindWindow carries out a request to bind.
func (q *qp) bindWindow(r *request) ibv.WCStatus {
	w, b := r.window, &r.bind
	const wrong = ibv.WC_MW_BIND_ERR
	if w.key == 0 || q.device.keys.get(w.key) != &w.memory || w.pd != q.protects { // gone since it was posted
		return wrong
	}
	if w.kind == ibv.MW_TYPE_1 && b.length == 0 {
		w.unbind()
		q.device.keys.rename(&w.memory, b.key)
		return ibv.WC_SUCCESS
	}
	const writes = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_ATOMIC
	switch m := b.region; {
	case m == nil || m.pd != w.pd || q.device.keys.get(m.key) != &m.memory,
		m.access&ibv.ACCESS_MW_BIND == 0 || m.access&ibv.ACCESS_ZERO_BASED != 0,
		b.access&^mwAccess != 0 || b.access&writes != 0 && m.access&ibv.ACCESS_LOCAL_WRITE == 0,
		w.kind == ibv.MW_TYPE_2 && (w.region != nil || b.length == 0 || b.key>>8 != w.key>>8 || b.key == w.key):
		return wrong
	}
	place, ok := b.region.locate(b.address, b.length, 0)
	if !ok {
		return wrong
	}
	w.unbind()
	q.device.keys.rename(&w.memory, b.key)
	w.region, w.start, w.length, w.base, w.access = b.region, b.address, b.length, place.Base, b.access
	if b.access&ibv.ACCESS_ZERO_BASED != 0 {
		w.start = 0
	}
	w.region.windows++
	if w.kind == ibv.MW_TYPE_2 {
		w.bound = q
		q.windows++
	}
	return ibv.WC_SUCCESS
}

// rename changes the low byte of a key.
func (k *keys) rename(m *memory, key uint32) { m.key = m.key&^0xff | key&0xff }

// boundWindow is the window of type 2 that is bound on this queue pair under a key, or nil.
func (q *qp) boundWindow(key uint32) *mw {
	if m := q.device.keys.get(key); m != nil && m.bound == q {
		return m.window
	}
	return nil
}

// invalidate carries out a request to invalidate.
func (q *qp) invalidate(r *request) ibv.WCStatus {
	w := q.boundWindow(r.imm)
	if w == nil {
		return ibv.WC_LOC_QP_OP_ERR
	}
	w.unbind()
	return ibv.WC_SUCCESS
}
