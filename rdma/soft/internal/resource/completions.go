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

// CQ is a completion queue: a ring that is written under the fabric's lock and read under its own.
type CQ struct {
	Core    *Core
	Uses    int  // by queue pairs and shared receive queues
	Stamps  bool // completions need the time
	Ignores bool // overruns
	Broke   func()
	Notify  func() // queues the event that the queue is armed for; nil without a channel

	Entries    []Completion
	Stamped    []Stamp // of the entries, if stamps
	Mask       uint32
	capacity   uint32
	Tail       uint32
	TailSeen   atomic.Uint32 // tail, for polls
	Armed      arming
	moderation moderation
	Broken     atomic.Bool // overrun
	spare      Completion

	Mu   sync.Mutex // polls hold it
	Head atomic.Uint32
}

type arming uint8

const (
	ArmedNot arming = iota
	ArmedSolicited
	ArmedNext
)

// Resize makes room for entries, and keeps those that are there.
func (c *CQ) Resize(entries uint32) {
	size := uint32(1) << bits.Len32(entries-1)
	grown, stamped := make([]Completion, size), []Stamp(nil)
	if c.Stamps {
		stamped = make([]Stamp, size)
	}
	for i := c.Head.Load(); i != c.Tail; i++ {
		grown[i&(size-1)] = c.Entries[i&c.Mask]
		if c.Stamps {
			stamped[i&(size-1)] = c.Stamped[i&c.Mask]
		}
	}
	c.Stamped = stamped
	c.Entries, c.Mask, c.capacity = grown, size-1, entries
}

// Next is the entry that the next completion goes to; publish shows it to polls.
func (c *CQ) Next() *Completion {
	if c.Tail-c.Head.Load() >= c.capacity || c.Broken.Load() {
		if !c.Ignores && !c.Broken.Swap(true) {
			c.Broke()
			c.Core.overruns = append(c.Core.overruns, c)
		}
		return &c.spare
	}
	return &c.Entries[c.Tail&c.Mask]
}

// NextOf is next for the completion of a receive, which is the one before a position.
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
		c.Stamped[c.Tail&c.Mask] = Stamp{c.Core.Clock.Now(), c.Core.Clock.Wall()}
	}
	c.Tail++
	lock.StoreRelease32(&c.TailSeen, c.Tail)
	if c.Armed != ArmedNot && c.Notify != nil && (c.Armed == ArmedNext || solicited || e.WC.Status != ibv.WC_SUCCESS) {
		c.moderate()
	}
}

// Poll takes as many completions as there is memory for, or returns −1 if there is none.
func (c *CQ) Poll(wcs uint64, n int32) (got int32) {
	if n <= 0 || c.TailSeen.Load() == c.Head.Load() {
		return 0
	}
	c.Mu.Lock()
	head, end := c.Head.Load(), c.TailSeen.Load()
	end = head + min(uint32(n), end-head)
	next := head
	// mem.Try, but with one deferred function for all that is to do at the end, because most polls take one completion
	done, before := false, debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if got = int32(next - head); done {
			c.Free(head, next)
			c.Mu.Unlock()
			return
		}
		c.Free(head, next)
		c.Mu.Unlock()
		if mem.OnlyFault(recover()); got == 0 {
			got = -1
		}
	}()
	for ; next != end; next++ {
		*mem.At[ibv.WC](wcs) = c.Entries[next&c.Mask].WC
		wcs += uint64(unsafe.Sizeof(ibv.WC{}))
	}
	done = true
	return
}

// Free releases the places of polled completions and the slots of their requests, one queue at a time. The caller holds
// cq.mu.
func (c *CQ) Free(from, to uint32) {
	for n := uint32(1); from != to; n++ {
		e := &c.Entries[from&c.Mask]
		if from++; from != to && e.IsOf(&c.Entries[from&c.Mask].Slot) {
			continue
		}
		last := e.Slot
		lock.StoreRelease32(&c.Head, from) // first, or a request in such a slot could find the completion queue full
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

// moderation holds back the events of a completion queue: one comes for count completions, or a period after the first
// of them. It is under the fabric's lock.
type moderation struct {
	count  uint16 // 0 and 1 hold nothing back
	period time.Duration
	held   uint16 // completions since the queue was armed
	timer  uint64
	fire   func() // notified
}

// Modify changes the moderation. The caller holds Fabric.mu.
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

// moderate counts a completion that an event is to come for. The caller holds Fabric.mu.
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

// notified queues the event that the queue is armed for. The caller holds Fabric.mu.
func (c *CQ) notified() {
	c.moderation.held = 0
	c.Armed = ArmedNot
	c.Notify()
}

// Quiet takes back an event that is held back. The caller holds Fabric.mu.
func (c *CQ) Quiet() {
	if c.moderation.held > 0 {
		c.Core.Clock.Cancel(c.moderation.timer)
	}
}
