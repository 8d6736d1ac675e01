// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
)

// extend makes the queue one that is polled by ibv_start_poll and its like.
func (c *cq) extend(attr *ibv.CQInitAttrEx) {
	c.flags = ibv.CreateCQWCFlags(attr.WCFlags)
	c.stamps = c.flags&(ibv.WC_EX_WITH_COMPLETION_TIMESTAMP|ibv.WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0
	c.ignores = attr.Flags&ibv.CREATE_CQ_ATTR_IGNORE_OVERRUN != 0
	all.slots.poller(&c.record.CQEx, c.flags)
}

func cqOf(address uint64) *cq {
	c := all.cqs.get(at[cqRecord](address).index)
	if c == nil || addressOf(c.record) != address {
		return nil
	}
	return c
}

// startPoll is the slot start_poll. If there is a completion, it takes cq.mu for its caller, until ibv_end_poll.
func startPoll(address, attr, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || attr == 0 || at[ibv.PollCQAttr](attr).CompMask != 0 {
		return uint64(errnos.EINVAL), 0
	}
	c.mu.Lock()
	c.ahead = 0
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
		return uint64(errnos.EIO), 0
	}
	return uint64(errnos.ENOENT), 0
}

// step shows the next completion. The caller holds cq.mu.
func (c *cq) step() bool {
	at := c.head.Load() + c.ahead
	if at == c.tailSeen.Load() {
		return false
	}
	c.current = &c.entries[at&c.mask]
	c.ahead++
	c.record.WRID, c.record.Status = c.current.wc.WRID, c.current.wc.Status
	return true
}

// nextPoll is the slot next_poll. The caller holds cq.mu, since ibv_start_poll.
func nextPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || c.current == nil { // nothing was started
		return uint64(errnos.EINVAL), 0
	}
	if !c.step() {
		return uint64(errnos.ENOENT), 0
	}
	return 0, 0
}

// endPoll is the slot end_poll, which releases the lock. The caller holds cq.mu, since ibv_start_poll.
func endPoll(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := cqOf(address)
	if c == nil || c.current == nil {
		return 0, errnos.EINVAL
	}
	head := c.head.Load()
	for i := range c.ahead {
		c.entries[(head+i)&c.mask].retire()
	}
	c.head.Store(head + c.ahead)
	c.ahead, c.current = 0, nil
	c.mu.Unlock()
	return 0, 0
}

// reader makes a function of the completion that is shown a slot. It needs no lock: ibv_start_poll has taken cq.mu for
// the slot.
func reader(f func(e *completion) uint64) runtime.SlotFunc {
	return func(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
		if c := cqOf(address); c != nil && c.current != nil {
			return f(c.current), 0
		}
		return 0, 0
	}
}

// readTMInfo is the slot read_tm_info. The caller holds cq.mu, since ibv_start_poll.
func readTMInfo(address, info, _, _, _, _ uint64) (uint64, runtime.Errno) {
	if c := cqOf(address); c != nil && c.current != nil && info != 0 {
		*at[ibv.WCTMInfo](info) = c.current.tm
	}
	return 0, 0
}

// modifyCQ is ibv_modify_cq. Events are not held back here, so that moderation changes nothing.
func modifyCQ(address, record uint64) runtime.Errno {
	if find[cq](address) == nil || record == 0 || at[ibv.ModifyCQAttr](record).AttrMask >= ibv.CQ_ATTR_RESERVED {
		return errnos.EINVAL
	}
	return errnos.EOPNOTSUPP
}
