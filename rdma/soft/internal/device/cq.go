// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// cqRecord is the C record of a completion queue, with its place in the host's table.
type cqRecord struct {
	ibv.CQEx
	index uint32
}

// cq is a completion queue as programs know it.
type cq struct {
	*context
	CQ
	record  *cqRecord
	index   uint32
	channel *channel
	parent  *pd     // domain that it was made in, or nil
	events  Reports // of the channel
	asyncs  Reports
	flags   ibv.CreateCQWCFlags // of an extended one

	// Between ibv_start_poll and ibv_end_poll, guarded by CQ.mu.
	current    *Completion
	shown      Completion
	shownStamp Stamp // if stamps
}

func createCQ(of ibv.Ptr[ibv.Context], entries int32, userContext uintptr, ch ibv.Ptr[ibv.CompChannel],
	vector uint32) (uint64, runtime.Errno) {
	c := find[context](of)
	if c == nil || entries <= 0 {
		return 0, syscall.EINVAL
	}
	return c.newCQ(&ibv.CQInitAttrEx{CQE: uint32(entries), CQContext: userContext, Channel: ch, CompVector: vector},
		false)
}

func (c *context) newCQ(attr *ibv.CQInitAttrEx, extended bool) (uint64, runtime.Errno) {
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	ch := find[channel](uint64(attr.Channel))
	if attr.CQE == 0 || attr.CQE > maxCQE || attr.CompVector != 0 || attr.Channel != 0 &&
		(ch == nil || ch.context != c) {
		return 0, syscall.EINVAL
	}
	var parent *pd
	if attr.CompMask&ibv.CQ_INIT_ATTR_MASK_PD != 0 {
		if parent = find[pd](uint64(attr.ParentDomain)); parent == nil || parent.parent == nil || parent.context != c {
			return 0, syscall.EINVAL
		}
	}
	record, errno := allocate[cqRecord](c.device)
	if errno != 0 {
		return 0, errno
	}
	q := &cq{context: c, record: record, channel: ch, parent: parent}
	q.core = &c.fabric().Core
	q.broke = func() { q.tell(ibv.EVENT_CQ_ERR, mem.AddressOf(record), &q.asyncs) }
	record.Context, record.Channel, record.CQContext = c.address(), attr.Channel, attr.CQContext
	if extended {
		q.extend(attr)
	}
	q.resize(attr.CQE)
	record.CQE = int32(attr.CQE)
	q.index = all.cqs.add(q)
	record.index, record.Handle = q.index, q.index
	c.uses++
	if parent != nil {
		parent.hold(1)
	}
	if ch != nil {
		ch.uses++
		ch.record.Refcnt++
		q.notify = func() { ch.events.Push(q) }
	}
	enter(record, q)
	return mem.AddressOf(record), 0
}

func resizeCQ(of ibv.Ptr[ibv.CQ], entries int32) runtime.Errno {
	c := find[cq](of)
	if c == nil || entries <= 0 || entries > maxCQE {
		return syscall.EINVAL
	}
	c.mu.Lock() // first, because a callback of the poll may post before it ends
	defer c.mu.Unlock()
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	if find[cq](of) != c || c.tail-c.head.Load() > uint32(entries) {
		return syscall.EINVAL
	}
	c.resize(uint32(entries))
	c.record.CQE = entries
	return 0
}

func destroyCQ(of ibv.Ptr[ibv.CQ]) runtime.Errno {
	c := locked[cq](of)
	if c == nil {
		return syscall.EINVAL
	}
	f := c.fabric()
	defer f.Unlock()
	if errno := mayGo(f, of, c, func() bool { return c.Uses > 0 }, &c.events, &c.asyncs); errno != 0 {
		return errno
	}
	c.silence(&c.asyncs)
	if c.channel != nil {
		c.quiet()
		c.channel.events.Drop(func(other *cq) bool { return other == c })
		c.channel.uses--
		c.channel.record.Refcnt--
	}
	for i := c.head.Load(); i != c.tail; i++ { // they will not be polled, and shared receive queues live on
		c.entries[i&c.mask].Retire(1)
	}
	if c.parent != nil {
		c.parent.hold(-1)
	}
	all.cqs.remove(c.index)
	c.context.leave()
	forget(c.record)
	return 0
}

func (c *cq) reported() *Reports { return &c.asyncs }

// pollCQ is the slot poll_cq.
func pollCQ(address, n, wcs, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil {
		return ^uint64(0), 0
	}
	got := c.poll(wcs, int32(n))
	if got == 0 && int32(n) > 0 && c.fabric().idle() {
		got = c.poll(wcs, int32(n))
	}
	if got < 0 || got == 0 && c.broken.Load() {
		return ^uint64(0), 0
	}
	return uint64(got), 0
}

// reqNotifyCQ is the slot req_notify_cq.
func reqNotifyCQ(address, solicitedOnly, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil {
		return uint64(syscall.EINVAL), 0
	}
	f := c.fabric()
	f.mu.Lock()
	if int32(solicitedOnly) == 0 {
		c.armed = armedNext
	} else if c.armed == armedNot {
		c.armed = armedSolicited
	}
	// the caller will wait for the file, without another call
	if ch := c.channel; ch != nil && f.clock.IsVirtual() && !ch.events.Blocks() {
		f.clock.Await(&ch.events)
	}
	f.mu.Unlock()
	if w := f.polled.Load(); w != nil {
		w.Armed()
	}
	return 0, 0
}

// createCQEx is the operation create_cq_ex.
func createCQEx(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := *mem.At[ibv.CQInitAttrEx](address)
	const (
		known = ibv.CQ_INIT_ATTR_MASK_FLAGS | ibv.CQ_INIT_ATTR_MASK_PD
		flags = ibv.CREATE_CQ_ATTR_SINGLE_THREADED | ibv.CREATE_CQ_ATTR_IGNORE_OVERRUN
		lacks = ibv.WC_EX_WITH_CVLAN | ibv.WC_EX_WITH_FLOW_TAG
	)
	if attr.CompMask&ibv.CQ_INIT_ATTR_MASK_FLAGS == 0 {
		attr.Flags = 0
	}
	switch {
	case attr.CompMask&^known != 0, attr.Flags&^flags != 0:
		return 0, syscall.EINVAL
	case attr.WCFlags&lacks != 0, attr.WCFlags&^ibv.CREATE_CQ_SUP_WC_FLAGS != 0:
		return 0, syscall.EOPNOTSUPP
	}
	return c.newCQ(&attr, true)
}

func cqOf(address uint64) *cq {
	c := all.cqs.get(mem.At[cqRecord](address).index)
	if c == nil || mem.AddressOf(c.record) != address {
		return nil
	}
	return c
}
