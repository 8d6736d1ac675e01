// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// cqRecord is the C record of a completion queue, with its place in the host's table.
type cqRecord struct {
	ibv.CQEx
	index uint32
}

// cq is a completion queue of a program.
type cq struct {
	*Context
	resource.CQ
	record  *cqRecord
	index   uint32
	channel *Channel
	parent  *PD              // its parent domain, or nil
	events  resource.Reports // completion events
	asyncs  resource.Reports
	flags   ibv.CreateCQWCFlags // of an extended completion queue

	// Between ibv_start_poll and ibv_end_poll, guarded by CQ.Mu.
	current    *resource.Completion
	shown      resource.Completion
	shownStamp resource.Stamp // if Stamps
}

func CreateCQ(of ibv.Ptr[ibv.Context], entries int32, userContext uintptr, ch ibv.Ptr[ibv.CompChannel],
	vector uint32) (uint64, runtime.Errno) {
	c := Find[Context](of)
	if c == nil || entries <= 0 {
		return 0, syscall.EINVAL
	}
	return c.newCQ(&ibv.CQInitAttrEx{CQE: uint32(entries), CQContext: userContext, Channel: ch, CompVector: vector},
		false)
}

func (c *Context) newCQ(attr *ibv.CQInitAttrEx, extended bool) (uint64, runtime.Errno) {
	c.Fabric().Mu.Lock()
	defer c.Fabric().Unlock()
	ch := Find[Channel](uint64(attr.Channel))
	if attr.CQE == 0 || attr.CQE > maxCQE || attr.CompVector != 0 || attr.Channel != 0 &&
		(ch == nil || ch.Context != c) {
		return 0, syscall.EINVAL
	}
	var parent *PD
	if attr.CompMask&ibv.CQ_INIT_ATTR_MASK_PD != 0 {
		if parent = Find[PD](uint64(attr.ParentDomain)); parent == nil || parent.parent == nil || parent.Context != c {
			return 0, syscall.EINVAL
		}
	}
	record, errno := allocate[cqRecord](c.Device)
	if errno != 0 {
		return 0, errno
	}
	q := &cq{Context: c, record: record, channel: ch, parent: parent}
	q.Core = &c.Fabric().Core
	q.Broke = func() { q.report(ibv.EVENT_CQ_ERR, mem.AddressOf(record), &q.asyncs) }
	record.Context, record.Channel, record.CQContext = c.Address(), attr.Channel, attr.CQContext
	if extended {
		q.extend(attr)
	}
	q.Resize(attr.CQE)
	record.CQE = int32(attr.CQE)
	q.index = all.cqs.add(q)
	record.index, record.Handle = q.index, q.index
	if parent != nil {
		parent.hold(1)
	}
	if ch != nil {
		ch.uses++
		ch.record.Refcnt++
		q.Notify = func() { ch.Events.Push(q) }
	}
	return add(c, record, q)
}

func resizeCQ(of ibv.Ptr[ibv.CQ], entries int32) runtime.Errno {
	c := Find[cq](of)
	if c == nil || entries <= 0 || entries > maxCQE {
		return syscall.EINVAL
	}
	c.Mu.Lock() // first: code between start_poll and end_poll may post
	defer c.Mu.Unlock()
	c.Fabric().Mu.Lock()
	defer c.Fabric().Unlock()
	if Find[cq](of) != c || !c.Resize(uint32(entries)) {
		return syscall.EINVAL
	}
	c.record.CQE = entries
	return 0
}

func DestroyCQ(of ibv.Ptr[ibv.CQ]) runtime.Errno {
	return LockedDo(of, func(c *cq) runtime.Errno {
		return destroy(c, c.record, func() bool { return c.Uses > 0 }, c.end, &c.events, &c.asyncs)
	})
}

// end releases the objects that the queue uses.
func (c *cq) end() {
	c.dropEvents(&c.asyncs)
	if c.channel != nil {
		c.Quiet()
		c.channel.Events.Drop(func(other *cq) bool { return other == c })
		c.channel.uses--
		c.channel.record.Refcnt--
	}
	c.Drain()
	if c.parent != nil {
		c.parent.hold(-1)
	}
	all.cqs.remove(c.index)
}

func (c *cq) reported() *resource.Reports { return &c.asyncs }

// pollCQ implements the slot poll_cq.
func pollCQ(address, n, wcs, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil {
		return ^uint64(0), 0
	}
	got := c.Poll(wcs, int32(n))
	if got == 0 && int32(n) > 0 && c.Fabric().Idle() {
		got = c.Poll(wcs, int32(n))
	}
	if got < 0 || got == 0 && c.Broken.Load() {
		return ^uint64(0), 0
	}
	return uint64(got), 0
}

// reqNotifyCQ implements the slot req_notify_cq.
func reqNotifyCQ(address, solicitedOnly, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil {
		return uint64(syscall.EINVAL), 0
	}
	f := c.Fabric()
	f.Mu.Lock()
	c.Arm(int32(solicitedOnly) != 0)
	// the caller waits for the file without another call
	if ch := c.channel; ch != nil && f.Clock.IsVirtual() && !ch.Events.Blocks() {
		f.Clock.Await(&ch.Events)
	}
	f.Mu.Unlock()
	if w := f.Polled.Load(); w != nil {
		w.Armed()
	}
	return 0, 0
}

// createCQEx implements the operation create_cq_ex.
func createCQEx(c *Context, requested *ibv.CQInitAttrEx) (uint64, runtime.Errno) {
	attr := *requested
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

// extend prepares the queue for ibv_start_poll and the read functions.
func (c *cq) extend(attr *ibv.CQInitAttrEx) {
	c.flags = attr.WCFlags
	c.Stamps = c.flags&(ibv.WC_EX_WITH_COMPLETION_TIMESTAMP|ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0
	c.Ignores = attr.Flags&ibv.CREATE_CQ_ATTR_IGNORE_OVERRUN != 0
	all.slots.poller(&c.record.CQEx, c.flags)
}

// startPoll implements the slot start_poll. If there is a completion, it returns with CQ.Mu held, until ibv_end_poll.
func startPoll(address, attr, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || attr == 0 {
		return uint64(syscall.EINVAL), 0
	}
	mask := uint32(0)
	if !mem.Try(func() { mask = mem.At[ibv.PollCQAttr](attr).CompMask }) {
		return uint64(syscall.EFAULT), 0
	}
	if mask != 0 {
		return uint64(syscall.EINVAL), 0
	}
	c.Mu.Lock()
	if c.step() {
		return 0, 0
	}
	c.Mu.Unlock()
	if c.Fabric().Idle() {
		c.Mu.Lock()
		if c.step() {
			return 0, 0
		}
		c.Mu.Unlock()
	}
	if c.Broken.Load() {
		return uint64(syscall.EIO), 0
	}
	return uint64(syscall.ENOENT), 0
}

// step copies the next completion to shown. Its entry and its request's slot are free from then on, because programs
// post between ibv_start_poll and ibv_end_poll. The caller holds CQ.Mu.
func (c *cq) step() bool {
	if !c.Take(&c.shown, &c.shownStamp) {
		return false
	}
	c.current = &c.shown
	c.record.WRID, c.record.Status = c.shown.WC.WRID, c.shown.WC.Status
	return true
}

// nextPoll implements the slot next_poll. The caller holds CQ.Mu, since ibv_start_poll.
func nextPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || c.current == nil { // no poll was started
		return uint64(syscall.EINVAL), 0
	}
	if !c.step() {
		return uint64(syscall.ENOENT), 0
	}
	return 0, 0
}

// endPoll implements the slot end_poll, which releases the lock. The caller holds CQ.Mu, since ibv_start_poll.
func endPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || c.current == nil {
		return 0, syscall.EINVAL
	}
	c.current, c.shown.Slot = nil, resource.Slot{}
	c.Mu.Unlock()
	return 0, 0
}

// reader returns a slot that reads the current completion. It needs no lock, because ibv_start_poll has taken CQ.Mu.
func reader(f func(e *resource.Completion) uint64) runtime.SlotFunc {
	return func(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
		if c := cqOf(address); c != nil && c.current != nil {
			return f(c.current), 0
		}
		return 0, 0
	}
}

// stampReader returns a slot that reads the timestamp of the current completion, or 0 if the queue has none.
func stampReader(f func(s *resource.Stamp) int64) runtime.SlotFunc {
	return func(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
		if c := cqOf(address); c != nil && c.current != nil && c.Stamps {
			return uint64(f(&c.shownStamp)), 0
		}
		return 0, 0
	}
}

// readTMInfo implements the slot read_tm_info. The caller holds CQ.Mu, since ibv_start_poll.
func readTMInfo(address, info, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if c := cqOf(address); c != nil && c.current != nil && info != 0 {
		mem.Try(func() { *mem.At[ibv.WCTMInfo](info) = ibv.WCTMInfo{Tag: c.current.Tag, Priv: c.current.Priv} })
	}
	return 0, 0
}

// modifyCQ implements ibv_modify_cq. A count without a period, and a period without a count, delay nothing, as on mlx5:
// otherwise an event could be delayed forever.
func modifyCQ(c *cq, attr *ibv.ModifyCQAttr) runtime.Errno {
	if attr.AttrMask >= ibv.CQ_ATTR_RESERVED {
		return syscall.EINVAL
	}
	if attr.AttrMask&ibv.CQ_ATTR_MODERATE == 0 {
		return 0
	}
	c.Modify(attr.Moderate.CQCount, time.Duration(attr.Moderate.CQPeriod)*time.Microsecond)
	return 0
}
