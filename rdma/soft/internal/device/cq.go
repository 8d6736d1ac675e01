// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"math/bits"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// cqRecord is the C record of a completion queue, with its place in the host's table.
type cqRecord struct {
	ibv.CQEx
	index uint32
}

// cq is a completion queue: a ring that is written under the fabric's lock and read under its own.
type cq struct {
	*context
	record  *cqRecord
	index   uint32
	channel *channel
	parent  *pd // domain that it was made in, or nil
	uses    int
	events  reports // of the channel
	asyncs  reports
	flags   ibv.CreateCQWCFlags // of an extended one
	stamps  bool                // completions need the time
	ignores bool                // overruns

	entries    []completion
	stamped    []stamp // of the entries, if stamps
	mask       uint32
	capacity   uint32
	tail       uint32
	tailSeen   atomic.Uint32 // tail, for polls
	armed      arming
	moderation moderation
	broken     atomic.Bool // overrun
	spare      completion

	mu   sync.Mutex // polls hold it; guards the fields below
	head atomic.Uint32
	// between ibv_start_poll and ibv_end_poll, shown
	current    *completion
	shown      completion
	shownStamp stamp // if stamps
}

type arming uint8

const (
	armedNot arming = iota
	armedSolicited
	armedNext
)

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
	defer c.fabric().unlock()
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
	record.Context, record.Channel, record.CQContext = c.address(), attr.Channel, attr.CQContext
	if extended {
		q.extend(attr)
	}
	q.resize(attr.CQE)
	q.index = all.cqs.add(q)
	record.index, record.Handle = q.index, q.index
	c.uses++
	if parent != nil {
		parent.hold(1)
	}
	if ch != nil {
		ch.uses++
		ch.record.Refcnt++
	}
	enter(record, q)
	return addressOf(record), 0
}

// resize makes room for entries, and keeps those that are there.
func (c *cq) resize(entries uint32) {
	size := uint32(1) << bits.Len32(entries-1)
	grown, stamped := make([]completion, size), []stamp(nil)
	if c.stamps {
		stamped = make([]stamp, size)
	}
	for i := c.head.Load(); i != c.tail; i++ {
		grown[i&(size-1)] = c.entries[i&c.mask]
		if c.stamps {
			stamped[i&(size-1)] = c.stamped[i&c.mask]
		}
	}
	c.stamped = stamped
	c.entries, c.mask, c.capacity = grown, size-1, entries
	c.record.CQE = int32(entries)
}

func resizeCQ(of ibv.Ptr[ibv.CQ], entries int32) runtime.Errno {
	c := find[cq](of)
	if c == nil || entries <= 0 || entries > maxCQE {
		return syscall.EINVAL
	}
	c.mu.Lock() // first, because a callback of the poll may post before it ends
	defer c.mu.Unlock()
	c.fabric().mu.Lock()
	defer c.fabric().unlock()
	if find[cq](of) != c || c.tail-c.head.Load() > uint32(entries) {
		return syscall.EINVAL
	}
	c.resize(uint32(entries))
	return 0
}

func destroyCQ(of ibv.Ptr[ibv.CQ]) runtime.Errno {
	c := locked[cq](of)
	if c == nil {
		return syscall.EINVAL
	}
	f := c.fabric()
	defer f.unlock()
	if errno := mayGo(f, of, c, func() bool { return c.uses > 0 }, &c.events, &c.asyncs); errno != 0 {
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

func (c *cq) reported() *reports { return &c.asyncs }

// next is the entry that the next completion goes to; publish shows it to polls.
func (c *cq) next() *completion {
	if c.tail-c.head.Load() >= c.capacity || c.broken.Load() {
		if !c.ignores && !c.broken.Swap(true) {
			c.tell(ibv.EVENT_CQ_ERR, addressOf(c.record), &c.asyncs)
			c.fabric().overruns = append(c.fabric().overruns, c)
		}
		return &c.spare
	}
	return &c.entries[c.tail&c.mask]
}

// nextOf is next for the completion of a receive, which is the one before a position.
func (c *cq) nextOf(recvs *resource.RecvQueue, position uint32) *completion {
	e := c.next()
	e.Sends, e.Receives, e.Position = nil, recvs, position
	return e
}

func (c *cq) publish(e *completion, solicited bool) {
	if e == &c.spare {
		e.Retire(1)
		return
	}
	if c.stamps {
		c.stamped[c.tail&c.mask] = stamp{c.fabric().clock.Now(), c.fabric().clock.Wall()}
	}
	c.tail++
	lock.StoreRelease32(&c.tailSeen, c.tail)
	if c.armed != armedNot && c.channel != nil && (c.armed == armedNext || solicited || e.wc.Status != ibv.WC_SUCCESS) {
		c.moderate()
	}
}

// pollCQ is the slot poll_cq.
func pollCQ(address, n, wcs, _, _, _ uint64) (uint64, runtime.Errno) {
	c := all.cqs.get(at[cqRecord](address).index)
	if c == nil || addressOf(c.record) != address {
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

// poll takes as many completions as there is memory for, or returns −1 if there is none.
func (c *cq) poll(wcs uint64, n int32) (got int32) {
	if n <= 0 || c.tailSeen.Load() == c.head.Load() {
		return 0
	}
	c.mu.Lock()
	head, end := c.head.Load(), c.tailSeen.Load()
	end = head + min(uint32(n), end-head)
	next := head
	// mem.Try, but with one deferred function for all that is to do at the end, because most polls take one completion
	done, before := false, debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if got = int32(next - head); done {
			c.free(head, next)
			c.mu.Unlock()
			return
		}
		c.free(head, next)
		c.mu.Unlock()
		if mem.OnlyFault(recover()); got == 0 {
			got = -1
		}
	}()
	for ; next != end; next++ {
		*at[ibv.WC](wcs) = c.entries[next&c.mask].wc
		wcs += uint64(unsafe.Sizeof(ibv.WC{}))
	}
	done = true
	return
}

// free releases the places of polled completions and the slots of their requests, one queue at a time. The caller holds
// cq.mu.
func (c *cq) free(from, to uint32) {
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

// reqNotifyCQ is the slot req_notify_cq.
func reqNotifyCQ(address, solicitedOnly, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c := all.cqs.get(at[cqRecord](address).index)
	if c == nil || addressOf(c.record) != address {
		return uint64(syscall.EINVAL), 0
	}
	c.fabric().mu.Lock()
	if int32(solicitedOnly) == 0 {
		c.armed = armedNext
	} else if c.armed == armedNot {
		c.armed = armedSolicited
	}
	// the caller will wait for the file, without another call
	if ch := c.channel; ch != nil && c.fabric().clock.IsVirtual() && !ch.events.Blocks() {
		c.fabric().clock.Await(&ch.events)
	}
	c.fabric().mu.Unlock()
	if w := c.fabric().polled.Load(); w != nil {
		w.Armed()
	}
	return 0, 0
}

// createCQEx is the operation create_cq_ex.
func createCQEx(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := *at[ibv.CQInitAttrEx](address)
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

// completion is one entry.
type completion struct {
	wc ibv.WC
	resource.Slot
	priv uint32 // of a message with a tag, its context
	tag  uint64
}

// stamp is the creation time of a completion, for extended completion queues that report it.
type stamp struct {
	since int64 // nanoseconds since the fabric was made
	wall  int64 // nanoseconds of wall clock
}
