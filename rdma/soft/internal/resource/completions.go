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
	Uses    int  // number of queue pairs and shared receive queues
	Stamps  bool // completions need the time
	Ignores bool // overruns
	Broke   func()
	Notify  func() // queues the event that the queue is armed for; nil without a channel

	entries    []Completion
	stamped    []Stamp // of the entries, if stamps
	mask       uint32
	capacity   uint32
	tail       uint32
	tailSeen   atomic.Uint32 // tail, for polls
	armed      arming
	moderation moderation
	Broken     atomic.Bool // overrun
	spare      Completion

	Mu   sync.Mutex // polls hold it
	head atomic.Uint32
}

type arming uint8

const (
	armedNot arming = iota
	armedSolicited
	armedNext
)

// Resize changes the number of entries, and keeps the existing ones. It reports whether they fit.
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

// Next returns the entry for the next completion; Publish makes it visible to polls.
func (c *CQ) Next() *Completion {
	if c.tail-c.head.Load() >= c.capacity || c.Broken.Load() {
		if !c.Ignores && !c.Broken.Swap(true) {
			c.Broke()
			c.Core.overruns = append(c.Core.overruns, c)
		}
		return &c.spare
	}
	return &c.entries[c.tail&c.mask]
}

// NextOf is Next for the completion of the receive before a position.
func (c *CQ) NextOf(recvs *RecvQueue, position uint32) *Completion {
	e := c.Next()
	e.Sends, e.Receives, e.Position = nil, recvs, position
	return e
}

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

// Poll takes as many completions as there is memory for, or returns −1 if there is none.
func (c *CQ) Poll(wcs uint64, n int32) (got int32) {
	if n <= 0 || c.tailSeen.Load() == c.head.Load() {
		return 0
	}
	c.Mu.Lock()
	head, end := c.head.Load(), c.tailSeen.Load()
	end = head + min(uint32(n), end-head)
	next := head
	// mem.Try, but with one deferred function for all that is to do at the end, because most polls take one completion
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

// Take removes the next completion and, if the queue records it, its creation time. It reports whether there was one.
// The caller holds CQ.Mu.
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

// Drain frees the slots of completions that will not be polled, because shared receive queues outlive the completion
// queue.
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

// free releases the places of polled completions and the slots of their requests, one queue at a time. The caller holds
// CQ.Mu.
func (c *CQ) free(from, to uint32) {
	for n := uint32(1); from != to; n++ {
		e := &c.entries[from&c.mask]
		if from++; from != to && e.IsOf(&c.entries[from&c.mask].Slot) {
			continue
		}
		last := e.Slot
		lock.StoreRelease32(&c.head, from) // first, or a request in such a slot could find the completion queue full
		last.Retire(n)
		n = 0
	}
}

// Completion is one entry.
type Completion struct {
	WC ibv.WC
	Slot
	Priv uint32 // of a message with a tag, its context
	Tag  uint64
}

// Stamp is the creation time of a completion, for extended completion queues that report it.
type Stamp struct {
	Since int64 // nanoseconds since the fabric was made
	Wall  int64 // nanoseconds of wall clock
}

// moderation delays the events of a completion queue: one is sent after count completions, or a period after the first
// of them. The fabric's lock guards it.
type moderation struct {
	count  uint16 // 0 and 1: no delay
	period time.Duration
	held   uint16 // completions since the queue was armed
	timer  uint64
	fire   func() // notified
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

// moderate counts a completion that requires an event. The caller holds Core.Mu.
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

// notified queues the event that the queue is armed for. The caller holds Core.Mu.
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
