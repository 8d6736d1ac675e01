// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// MW is a memory window: a key to a part of a memory region that can be granted and revoked without registering memory.
//
// [QP.BindMW] binds a window of type 1; a request of [SendBatch.BindMW] or [WRProgram.BindMW] binds one of type 2.
// Register the region with ACCESS_MW_BIND; it cannot be closed while a window is bound to it. A window of type 2
// belongs to the queue pair that bound it until it is invalidated or closed. Close it before the queue pair, because
// ibv_destroy_qp waits for it on some kernels.
//
// Man: ibv_alloc_mw(3), ibv_bind_mw(3)
type MW struct {
	object
	kind ibv.MWType
	c    *ibv.MW
	pd   *PD
	rkey atomic.Uint32 // the last returned key, which a closed window keeps returning
}

// AllocMW creates a window that is not bound.
//
// C: ibv_alloc_mw
//
// Man: ibv_alloc_mw(3)
func (p *PD) AllocMW(kind ibv.MWType) (*MW, error) {
	m := &MW{pd: p, kind: kind}
	create := func() (*ibv.MW, error) {
		c, err := libibverbs.AllocMW(p.c, kind)
		if err != nil && kind != ibv.MW_TYPE_1 && kind != ibv.MW_TYPE_2 {
			err = explain("", "", fmt.Sprintf("%v is not a known type of memory window", kind), err)
		}
		if err == nil {
			m.rkey.Store(c.RKey)
		}
		return c, err
	}
	return made(m, createObject(p.device, &m.object, &m.c, m, "ibv_alloc_mw", create, libibverbs.DeallocMW,
		func(c *ibv.MW) string { return fmt.Sprintf("MW %d on %s", c.Handle, p.device.name) }, &p.object))
}

// C returns C's object, for calls of generated/libibverbs. It belongs to the MW.
func (m *MW) C() *ibv.MW { return whileOpen(&m.object, m.c) }

// Ptr returns the window for use in work requests.
func (m *MW) Ptr() ibv.Ptr[ibv.MW] { return ptrWhileOpen(&m.object, m.c) }

// PD returns the window's protection domain.
func (m *MW) PD() *PD { return m.pd }

// Type returns ibv.MW_TYPE_1 or ibv.MW_TYPE_2.
func (m *MW) Type() ibv.MWType { return m.kind }

// RKey returns the key that a peer needs, in host byte order: that of the last [QP.BindMW] for a window of type 1, and
// that of the last SetRKey for one of type 2.
func (m *MW) RKey() uint32 {
	if m.life.Hold() {
		m.rkey.Store(atomic.LoadUint32(&m.c.RKey))
		m.life.Release()
	}
	return m.rkey.Load()
}

// NextRKey returns a key for the next bind of a window of type 2: RKey with another tag, the lowest 8 bits, which
// belong to the user. A peer with an older key then loses access:
//
//	key := mw.NextRKey()
//	b.BindMW(id, mw.Ptr(), key, info)
//	qp.PostSend(b)
//	mw.SetRKey(key)
//
// C: ibv_inc_rkey
//
// Man: ibv_inc_rkey(3)
func (m *MW) NextRKey() uint32 { return libibverbs.IncRKey(m.RKey()) }

// SetRKey records the key of a posted bind of a window of type 2. C does not record it, and the next bind needs it.
// Call it after the post, because providers read the old key while the bind is posted. On a closed window it does
// nothing.
func (m *MW) SetRKey(rkey uint32) {
	if m.life.Hold() {
		atomic.StoreUint32(&m.c.RKey, rkey)
		m.life.Release()
	}
}

// Close frees the window. Its keys become invalid.
//
// C: ibv_dealloc_mw
//
// Man: ibv_alloc_mw(3)
func (m *MW) Close() error { return m.end() }

// BindMW binds a window of type 1 to a part of a memory region, which bind names with [MR.Ptr], or unbinds it with a
// length of 0. It takes a slot of the send queue like a request, and its completion follows bind (SEND_SIGNALED, WRID).
// The window has a new key at once; a peer can use it after the completion. The addresses in bind are those of the
// region.
//
// C: ibv_bind_mw
//
// Man: ibv_bind_mw(3)
func (q *QP) BindMW(m *MW, bind *ibv.MWBind) error {
	const verb = "ibv_bind_mw"
	if m == nil || bind == nil {
		return invalid(verb, q.name, "a memory window and its memory region must be set")
	}
	if q.send == nil {
		return q.cannot(verb,
			"it was created without a send queue (max_send_wr is 0, or it has no send completion queue)")
	}
	if v := ibv.BindMWValidity(m.kind, ibv.BindMWVerb, q.kind); refusal.Refused(v) {
		return invalid(verb, q.name, "%s is of %v: %s", m.name, m.kind, v.Reason)
	}
	info := &bind.BindInfo
	mr, err := lookup[MR](q.device, verb, q.name, "bind_info.mr", uintptr(info.MR))
	if err != nil {
		return err
	}
	if mr == nil && (info.Addr != 0 || info.Length != 0) {
		return invalid(verb, q.name, "bind_info has memory, but no memory region")
	}
	holds := []*object{&q.object, &m.object}
	if mr != nil {
		if v, flag := ibv.CheckAccess(ibv.AccessBindMW1, info.MWAccessFlags); refusal.Refused(v) {
			return invalid(verb, q.name, "access %v: %v: %s", info.MWAccessFlags, flag, v.Reason)
		}
		if r := mr.Region(); info.Addr < r.Address || info.Addr-r.Address > r.Length ||
			info.Length > r.Length-(info.Addr-r.Address) {
			return invalid(verb, q.name, "%d bytes at %#x are not inside %s, which has %d at %#x", info.Length,
				info.Addr, mr.name, r.Length, r.Address)
		}
		holds = append(holds, &mr.object)
	}
	if err := useAll(verb, holds...); err != nil {
		return err
	}
	defer doneAll(holds...)
	own := *bind
	return wrap(verb, q.name, q.send.BindMW(m.c, &own))
}
