// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// extend makes the queue one that is polled by ibv_start_poll and its like.
func (c *cq) extend(attr *ibv.CQInitAttrEx) {
	c.flags = attr.WCFlags
	c.stamps = c.flags&(ibv.WC_EX_WITH_COMPLETION_TIMESTAMP|ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0
	c.ignores = attr.Flags&ibv.CREATE_CQ_ATTR_IGNORE_OVERRUN != 0
	all.slots.poller(&c.record.CQEx, c.flags)
}

// startPoll is the slot start_poll. If there is a completion, it takes cq.mu for its caller, until ibv_end_poll.
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
	c.mu.Lock()
	if c.step() {
		return 0, 0
	}
	c.mu.Unlock()
	if c.fabric().idle() {
		c.mu.Lock()
		if c.step() {
			return 0, 0
		}
		c.mu.Unlock()
	}
	if c.broken.Load() {
		return uint64(syscall.EIO), 0
	}
	return uint64(syscall.ENOENT), 0
}

// step shows the next completion, as a copy: its place and its request's slot are free from now on, because programs
// post between ibv_start_poll and ibv_end_poll. The caller holds cq.mu.
func (c *cq) step() bool {
	at := c.head.Load()
	if at == c.tailSeen.Load() {
		return false
	}
	c.shown = c.entries[at&c.mask]
	if c.stamps {
		c.shownStamp = c.stamped[at&c.mask]
	}
	c.current = &c.shown
	c.record.WRID, c.record.Status = c.shown.wc.WRID, c.shown.wc.Status
	c.free(at, at+1)
	return true
}

// nextPoll is the slot next_poll. The caller holds cq.mu, since ibv_start_poll.
func nextPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || c.current == nil { // nothing was started
		return uint64(syscall.EINVAL), 0
	}
	if !c.step() {
		return uint64(syscall.ENOENT), 0
	}
	return 0, 0
}

// endPoll is the slot end_poll, which releases the lock. The caller holds cq.mu, since ibv_start_poll.
func endPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || c.current == nil {
		return 0, syscall.EINVAL
	}
	c.current, c.shown.Slot = nil, resource.Slot{}
	c.mu.Unlock()
	return 0, 0
}

// reader makes a function of the completion that is shown a slot. It needs no lock: ibv_start_poll has taken cq.mu for
// the slot.
func reader(f func(e *Completion) uint64) runtime.SlotFunc {
	return func(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
		if c := cqOf(address); c != nil && c.current != nil {
			return f(c.current), 0
		}
		return 0, 0
	}
}

// stampReader is a reader of the creation time of a completion; 0 if the queue does not report it.
func stampReader(f func(s *Stamp) int64) runtime.SlotFunc {
	return func(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
		if c := cqOf(address); c != nil && c.current != nil && c.stamps {
			return uint64(f(&c.shownStamp)), 0
		}
		return 0, 0
	}
}

// readTMInfo is the slot read_tm_info. The caller holds cq.mu, since ibv_start_poll.
func readTMInfo(address, info, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if c := cqOf(address); c != nil && c.current != nil && info != 0 {
		mem.Try(func() { *mem.At[ibv.WCTMInfo](info) = ibv.WCTMInfo{Tag: c.current.tag, Priv: c.current.priv} })
	}
	return 0, 0
}

// modifyCQ is ibv_modify_cq. A count without a period, and a period without a count, hold nothing back, as on devices
// of mlx5: no event could be left out for good.
func modifyCQ(address, record uint64) runtime.Errno {
	if record == 0 {
		return syscall.EINVAL
	}
	attr := *mem.At[ibv.ModifyCQAttr](record)
	if attr.AttrMask >= ibv.CQ_ATTR_RESERVED {
		return syscall.EINVAL
	}
	c := locked[cq](address)
	if c == nil {
		return syscall.EINVAL
	}
	defer c.fabric().Unlock()
	if attr.AttrMask&ibv.CQ_ATTR_MODERATE == 0 {
		return 0
	}
	c.modify(attr.Moderate.CQCount, time.Duration(attr.Moderate.CQPeriod)*time.Microsecond)
	return 0
}
