// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// MW is a memory window: a remote key for a part of a memory region. It grants and revokes access without registering
// memory.
//
// [QP.BindMW] binds a window of type 1; a request of [SendBatch.BindMW] or [WRProgram.BindMW] binds one of type 2.
// Register the region with ACCESS_MW_BIND. It cannot be closed while a window is bound to it. A window of type 2
// belongs to the queue pair that bound it until it is invalidated or closed. Close it before the queue pair, because
// ibv_destroy_qp waits for it on some kernels.
//
// Man: ibv_alloc_mw(3), ibv_bind_mw(3)
type MW struct {
	object
	kind ibv.MWType
	c    *ibv.MW
	pd   *PD
	rkey atomic.Uint32 // the last known key, for RKey after Close
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

// RKey returns the window's remote key, in host byte order: the key of the last [QP.BindMW] for a window of type 1, and
// that of the last SetRKey for a window of type 2.
func (m *MW) RKey() uint32 {
	if m.life.Hold() {
		m.rkey.Store(atomic.LoadUint32(&m.c.RKey))
		m.life.Release()
	}
	return m.rkey.Load()
}

// NextRKey returns a key for the next bind of a window of type 2: RKey with its lowest 8 bits, the tag, incremented.
// The bind revokes access with older keys:
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

// SetRKey records the key of a posted bind of a window of type 2, for the next bind. C does not record it. Call SetRKey
// after the post, because providers read the old key during the post. On a closed window it does nothing.
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

// BindMW binds a window of type 1 to a part of a memory region, or unbinds it if the length is 0. Set the region in
// bind with [MR.Ptr]; addresses in bind are those of the region. The bind occupies a slot of the send queue;
// SEND_SIGNALED and WRID in bind determine its completion. The window has a new key at once, which peers can use after
// the completion.
//
// C: ibv_bind_mw
//
// Man: ibv_bind_mw(3)
func (q *QP) BindMW(m *MW, bind *ibv.MWBind) error {
	const verb = "ibv_bind_mw"
	if m == nil || bind == nil {
		return invalid(verb, q.name, "the window or the bind is nil")
	}
	if q.send == nil {
		return q.cannot(verb,
			"it has no send queue, because max_send_wr is 0 or send_cq is not set")
	}
	if v := ibv.BindMWValidity(m.kind, ibv.BindMWVerb, q.kind); refusal.Refused(v) {
		return invalid(verb, q.name, "%s is a window of %v: %s", m.name, m.kind, v.Reason)
	}
	info := &bind.BindInfo
	mr, err := lookup[MR](q.device, verb, q.name, "bind_info.mr", uintptr(info.MR))
	if err != nil {
		return err
	}
	if mr == nil && (info.Addr != 0 || info.Length != 0) {
		return invalid(verb, q.name, "bind_info has an address or a length, but no memory region")
	}
	holds := []*object{&q.object, &m.object}
	if mr != nil {
		if v, flag := ibv.CheckAccess(ibv.AccessBindMW1, info.MWAccessFlags); refusal.Refused(v) {
			return invalid(verb, q.name, "access %v: %v: %s", info.MWAccessFlags, flag, v.Reason)
		}
		if r := mr.Region(); info.Addr < r.Address || info.Addr-r.Address > r.Length ||
			info.Length > r.Length-(info.Addr-r.Address) {
			return invalid(verb, q.name, "%d bytes at %#x are not inside %s, which has %d bytes at %#x", info.Length,
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
