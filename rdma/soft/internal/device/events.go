// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/runtime"
)

// events is a queue of events, with a file that can be read while it has any. It is under the fabric's lock.
type events[T any] struct {
	fd.Signal
	queue   []T
	waiters map[*nap.Waiter]struct{} // of threads that wait outside Go; an event wakes all of them
	closed  bool
	asleep  int  // number of goroutines that wait for the file; the last one closes it
	nudged  bool // the file can be read without an event, so that who waits for it looks
}

// Push adds an event. The caller holds Fabric.mu.
func (e *events[T]) Push(v T) {
	e.queue = append(e.queue, v)
	e.Raise()
	e.wake()
}

// wake wakes the threads that wait outside Go. They look again.
func (e *events[T]) wake() {
	for w := range e.waiters {
		w.Wake()
	}
	clear(e.waiters)
}

// PushBefore adds an event before the first one that is later, or at the end. The caller holds Fabric.mu.
func (e *events[T]) PushBefore(v T, later func(T) bool) {
	i := slices.IndexFunc(e.queue, later)
	if i < 0 {
		i = len(e.queue)
	}
	e.queue = slices.Insert(e.queue, i, v)
	e.Raise()
	e.wake()
}

// Drop removes events that no program will read.
func (e *events[T]) Drop(is func(T) bool) {
	kept := e.queue[:0]
	for _, v := range e.queue {
		if is(v) {
			e.Lower()
		} else {
			kept = append(kept, v)
		}
	}
	clear(e.queue[len(kept):])
	e.queue = kept
}

// Close wakes waiting goroutines, and closes the file.
func (e *events[T]) Close() {
	e.closed = true
	e.Raise()
	e.wake()
	if e.asleep == 0 {
		e.Signal.Close()
	}
}

// Nudge makes goroutines look again that wait for the file outside our calls.
func (e *events[T]) Nudge() {
	if e.closed {
		return
	}
	e.Raise()
	if e.nudged { // the file was not read since; raising it again still wakes a goroutine that waits for a change
		e.Lower()
	}
	e.nudged = true
}

// wait takes the next event, and waits for one unless the file does not block. It is called with the fabric's lock, and
// releases it while it waits. A virtual clock advances during the wait; if the file does not block, it advances if
// lookingWaits is set. A signal that the caller's thread handles during the wait ends it with EINTR. With a waiter, it
// returns nap.Asleep instead of waiting, and is called again when the waiter is woken.
func (e *events[T]) wait(f *Fabric, lookingWaits bool, w *nap.Waiter) (v T, errno runtime.Errno) {
	for {
		if e.closed { // the file may be another's by now
			return v, syscall.EINVAL
		}
		if e.nudged {
			e.nudged = false
			e.Lower()
		}
		if len(e.queue) > 0 {
			break
		}
		blocks := e.Blocks()
		if (blocks || lookingWaits) && f.clock.Step(f.work) && (blocks || len(e.queue) > 0) {
			f.unlock() // time can go on for ever
			f.mu.Lock()
			continue
		}
		if !blocks {
			if lookingWaits {
				f.clock.Await(e)
			}
			return v, syscall.EAGAIN
		}
		if w != nil && w.Interrupted != 0 {
			return v, w.Interrupted
		}
		if w != nil && w.Prepare(func() { e.leave(f, w) }) == nil { // else too many files are open
			if e.waiters == nil {
				e.waiters = map[*nap.Waiter]struct{}{}
			}
			e.waiters[w] = struct{}{}
			return v, nap.Asleep
		}
		e.asleep++
		errno = e.Sleep(f.unlock, f.mu.Lock, f.clock.IsVirtual())
		if e.asleep--; e.closed && e.asleep == 0 {
			e.Signal.Close()
		}
		if errno != 0 && !e.closed && len(e.queue) == 0 {
			return v, errno
		}
	}
	v = e.queue[0]
	e.queue = slices.Delete(e.queue, 0, 1)
	e.Lower()
	return v, 0
}

// leave ends the wait of a thread outside Go.
func (e *events[T]) leave(f *Fabric, w *nap.Waiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(e.waiters, w)
}

// reports counts the events of an object that a program got, and those that it acknowledged.
type reports struct{ got, acked uint32 }

// acknowledged counts an acknowledgement, and wakes its waiters.
func (f *Fabric) acknowledged(r *reports) {
	r.acked++
	f.acked.Broadcast()
}

// settled reports whether all events that the program got are acknowledged.
func (r *reports) settled() bool { return int32(r.got-r.acked) <= 0 }

// settle waits until they are. The fabric's lock is given up while it waits.
func (r *reports) settle(f *Fabric) {
	f.work()
	for !r.settled() {
		f.acked.Wait()
	}
}

// asyncEvent is an event that a context queues for the program.
type asyncEvent struct {
	kind    ibv.EventType
	element uint64   // the object's address; of a port, its number
	reports *reports // of the object; nil for a port
}

// tell queues an event of an object.
func (c *context) tell(kind ibv.EventType, element uint64, r *reports) {
	if c.closed {
		return
	}
	c.async.Push(asyncEvent{kind, element, r})
}

func (c *context) portEvent(kind ibv.EventType) { c.tell(kind, portNum, nil) }

// silence removes the undelivered events of an object.
func (c *context) silence(r *reports) {
	c.async.Drop(func(e asyncEvent) bool { return e.reports == r })
}

// getAsyncEvent is ibv_get_async_event. It waits, unless the context's file does not block.
func getAsyncEvent(of ibv.Ptr[ibv.Context], to ibv.Ptr[ibv.AsyncEvent], w *nap.Waiter) runtime.Errno {
	c := find[context](of)
	if c == nil || to == 0 {
		return syscall.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().unlock()
	e, errno := c.async.wait(c.fabric(), false, w)
	if errno != 0 {
		return errno
	}
	event := to.Deref()
	*event = ibv.AsyncEvent{EventType: e.kind}
	if e.reports == nil {
		*event.Element.PortNum() = portNum
	} else {
		e.reports.got++
		*event.Element.QP() = ibv.Ptr[ibv.QP](e.element)
	}
	return 0
}

// reporter is an object that asynchronous events concern.
type reporter interface {
	reported() *reports
	fabric() *Fabric
}

func ackAsyncEvent(of ibv.Ptr[ibv.AsyncEvent]) runtime.Errno {
	if of == 0 {
		return syscall.EINVAL
	}
	all.mu.RLock()
	object, ok := all.objects[uint64(*of.Deref().Element.QP())].(reporter)
	all.mu.RUnlock()
	if ok {
		f := object.fabric()
		f.mu.Lock()
		defer f.unlock()
		object.reported().acked++
		f.acked.Broadcast()
	}
	return 0
}

// channel is a completion channel.
type channel struct {
	*context
	record *ibv.CompChannel
	events events[*cq]
	uses   int
}

func createChannel(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.fabric().unlock()
	record, errno := allocate[ibv.CompChannel](c.device)
	if errno != 0 {
		return 0, errno
	}
	ch := &channel{context: c, record: record}
	if errno := ch.events.Open(); errno != 0 {
		forget(record)
		return 0, errno
	}
	*record = ibv.CompChannel{Context: c.address(), FD: ch.events.Descriptor()}
	c.uses++
	enter(record, ch)
	return addressOf(record), 0
}

func destroyChannel(of ibv.Ptr[ibv.CompChannel]) runtime.Errno {
	ch := locked[channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.fabric().unlock()
	if errno := mayGo(ch.fabric(), of, ch, func() bool { return ch.uses > 0 }); errno != 0 {
		return errno
	}
	ch.events.Close()
	ch.context.leave()
	forget(ch.record)
	return 0
}

// getCQEvent is ibv_get_cq_event. It waits, unless the channel's file does not block.
func getCQEvent(of ibv.Ptr[ibv.CompChannel], queue ibv.Ptr[ibv.Ptr[ibv.CQEx]],
	userContext ibv.Ptr[uintptr], w *nap.Waiter) runtime.Errno {
	if queue == 0 || userContext == 0 {
		return syscall.EINVAL
	}
	ch := locked[channel](of)
	if ch == nil {
		return syscall.EINVAL
	}
	defer ch.fabric().unlock()
	c, errno := ch.events.wait(ch.fabric(), true, w)
	if errno != 0 {
		return errno
	}
	c.events.got++
	*queue.Deref() = ibv.PtrTo(&c.record.CQEx)
	*userContext.Deref() = c.record.CQContext
	return 0
}

func ackCQEvents(of ibv.Ptr[ibv.CQ], n uint32) runtime.Errno {
	c := locked[cq](of)
	if c == nil {
		return syscall.EINVAL
	}
	f := c.fabric()
	defer f.unlock()
	c.events.acked += n
	c.record.CompEventsCompleted += n
	f.acked.Broadcast()
	return 0
}
