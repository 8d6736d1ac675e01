// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"math/bits"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

// CQ is a completion queue: a ring that is written under the fabric's lock and read under its own lock.
type CQ struct {
	Core    *Core
	Uses    int    // number of queue pairs and shared receive queues
	Stamps  bool   // completions have timestamps
	Ignores bool   // ignores overruns
	Broke   func() // called by an overrun
	Notify  func() // queues an event; nil without a channel

	entries    []Completion
	stamped    []Stamp // timestamps of entries, if Stamps
	mask       uint32
	capacity   uint32
	tail       uint32
	tailSeen   atomic.Uint32 // tail, as seen by polls
	armed      arming
	moderation moderation
	Broken     atomic.Bool // overrun
	spare      Completion

	Mu   sync.Mutex // held by polls
	head atomic.Uint32
}

type arming uint8

const (
	armedNot arming = iota
	armedSolicited
	armedNext
)

// Resize changes the capacity and keeps the completions in the queue. It reports whether they fit.
func (c *CQ) Resize(entries uint32) bool {
	if c.tail-c.head.Load() > entries {
		return false
	}
	size := uint32(1) << bits.Len32(entries-1)
	grown, stamped := make([]Completion, size), []Stamp(nil)
	if c.Stamps {
		stamped = make([]Stamp, size)
	}
	for i := c.head.Load(); i != c.tail; i++ {
		grown[i&(size-1)] = c.entries[i&c.mask]
		if c.Stamps {
			stamped[i&(size-1)] = c.stamped[i&c.mask]
		}
	}
	c.stamped = stamped
	c.entries, c.mask, c.capacity = grown, size-1, entries
	return true
}

// Next returns the entry for the next completion, with the fields that all completions have; Publish makes it visible to
// polls. Fields are stored one by one, because a composite literal would be copied from the stack.
func (c *CQ) Next(slot Slot, id uint64, status ibv.WCStatus, opcode ibv.WCOpcode, qp uint32) *Completion {
	e := &c.spare
	if c.tail-c.head.Load() < c.capacity && !c.Broken.Load() {
		e = &c.entries[c.tail&c.mask]
	} else if !c.Ignores && !c.Broken.Swap(true) {
		c.Broke()
		c.Core.overruns = append(c.Core.overruns, c)
	}
	e.WC, e.Slot, e.Priv, e.Tag = ibv.WC{}, slot, 0, 0
	e.WC.WRID, e.WC.Status, e.WC.Opcode, e.WC.QPNum = id, status, opcode, qp
	return e
}

// Publish makes an entry from Next visible to polls, and queues an event if the queue is armed.
func (c *CQ) Publish(e *Completion, solicited bool) {
	if e == &c.spare {
		e.Retire(1)
		return
	}
	if c.Stamps {
		c.stamped[c.tail&c.mask] = Stamp{c.Core.Clock.Now(), c.Core.Clock.Wall()}
	}
	c.tail++
	lock.StoreRelease32(&c.tailSeen, c.tail)
	if c.armed != armedNot && c.Notify != nil && (c.armed == armedNext || solicited || e.WC.Status != ibv.WC_SUCCESS) {
		c.moderate()
	}
}

// Poll removes up to n completions and stores them at wcs. It returns their number, or −1 if the memory at wcs is
// unmapped.
func (c *CQ) Poll(wcs uint64, n int32) (got int32) {
	if n <= 0 || c.tailSeen.Load() == c.head.Load() {
		return 0
	}
	c.Mu.Lock()
	head, end := c.head.Load(), c.tailSeen.Load()
	end = head + min(uint32(n), end-head)
	next := head
	// mem.Try with a single deferred function, because most polls take one completion
	done, before := false, debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if got = int32(next - head); done {
			c.free(head, next)
			c.Mu.Unlock()
			return
		}
		c.free(head, next)
		c.Mu.Unlock()
		if mem.OnlyFault(recover()); got == 0 {
			got = -1
		}
	}()
	for ; next != end; next++ {
		*mem.At[ibv.WC](wcs) = c.entries[next&c.mask].WC
		wcs += uint64(unsafe.Sizeof(ibv.WC{}))
	}
	done = true
	return
}

// Take removes the next completion, with its timestamp if the queue has them, and reports whether there was one. The
// caller holds CQ.Mu.
func (c *CQ) Take(to *Completion, made *Stamp) bool {
	i := c.head.Load()
	if i == c.tailSeen.Load() {
		return false
	}
	*to = c.entries[i&c.mask]
	if c.Stamps {
		*made = c.stamped[i&c.mask]
	}
	c.free(i, i+1)
	return true
}

// Drain frees the slots of completions that will not be polled, for shared receive queues that outlive the queue.
func (c *CQ) Drain() {
	for i := c.head.Load(); i != c.tail; i++ {
		c.entries[i&c.mask].Retire(1)
	}
}

// Arm requests an event for the next completion, or for the next solicited one.
func (c *CQ) Arm(solicited bool) {
	if !solicited {
		c.armed = armedNext
	} else if c.armed == armedNot {
		c.armed = armedSolicited
	}
}

// free frees the entries of polled completions and the slots of their requests, in runs of the same queue. The caller
// holds CQ.Mu.
func (c *CQ) free(from, to uint32) {
	for n := uint32(1); from != to; n++ {
		e := &c.entries[from&c.mask]
		if from++; from != to && e.sameQueue(&c.entries[from&c.mask].Slot) {
			continue
		}
		last := e.Slot
		lock.StoreRelease32(&c.head, from) // first, or a request in such a slot could find the completion queue full
		last.Retire(n)
		n = 0
	}
}

// Completion is an entry of a completion queue.
type Completion struct {
	WC ibv.WC
	Slot
	Priv uint32 // context of a message with a tag
	Tag  uint64
}

// Stamp is the creation time of a completion, for extended completion queues that report it.
type Stamp struct {
	Since int64 // nanoseconds since the fabric was made
	Wall  int64 // nanoseconds of wall clock
}

// moderation delays the events of a completion queue until count completions are there, or for a period after the first
// of them. The fabric's lock guards it.
type moderation struct {
	count  uint16 // 0 and 1: no delay
	period time.Duration
	held   uint16 // completions since the queue was armed
	timer  uint64
	fire   func() // CQ.notified
}

// Modify changes the moderation. The caller holds Core.Mu.
func (c *CQ) Modify(count uint16, period time.Duration) {
	m := &c.moderation
	m.count, m.period, m.fire = count, period, c.notified
	if period == 0 {
		m.count = 0
	}
	if m.held == 0 {
		return
	}
	c.Core.Clock.Cancel(m.timer)
	if m.held >= m.count {
		c.notified()
	} else {
		m.timer = c.Core.Clock.After(period, m.fire)
	}
}

// moderate counts a completion that requires an event, and queues the event if it is due. The caller holds Core.Mu.
func (c *CQ) moderate() {
	m := &c.moderation
	switch m.held++; {
	case m.held >= m.count:
		if m.held > 1 {
			c.Core.Clock.Cancel(m.timer)
		}
		c.notified()
	case m.held == 1:
		m.timer = c.Core.Clock.After(m.period, m.fire)
	}
}

// notified queues the event and disarms the queue. The caller holds Core.Mu.
func (c *CQ) notified() {
	c.moderation.held = 0
	c.armed = armedNot
	c.Notify()
}

// Quiet cancels a delayed event. The caller holds Core.Mu.
func (c *CQ) Quiet() {
	if c.moderation.held > 0 {
		c.Core.Clock.Cancel(c.moderation.timer)
	}
}
