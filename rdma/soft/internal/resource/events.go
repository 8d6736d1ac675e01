// SPDX-License-Identifier: BSD-2-Clause

package resource

import (
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/runtime"
)

// Events is a queue of events, with a file that is readable while the queue is not empty. The fabric's lock guards it.
type Events[T any] struct {
	fd.Signal
	Queue   []T
	waiters map[*nap.Waiter]struct{} // of threads that wait outside Go; an event wakes all of them
	closed  bool
	asleep  int  // number of goroutines that wait for the file; the last one closes it
	nudged  bool // the file is readable without an event, so that waiting goroutines check again
}

// Push adds an event. The caller holds Core.Mu.
func (e *Events[T]) Push(v T) {
	e.Queue = append(e.Queue, v)
	e.Raise()
	e.wake()
}

// wake wakes the threads that wait outside Go, so that they check again.
func (e *Events[T]) wake() {
	for w := range e.waiters {
		w.Wake()
	}
	clear(e.waiters)
}

// PushBefore inserts an event before the first one that is later, or at the end. The caller holds Core.Mu.
func (e *Events[T]) PushBefore(v T, later func(T) bool) {
	i := slices.IndexFunc(e.Queue, later)
	if i < 0 {
		i = len(e.Queue)
	}
	e.Queue = slices.Insert(e.Queue, i, v)
	e.Raise()
	e.wake()
}

// Drop removes events that no program will read.
func (e *Events[T]) Drop(is func(T) bool) {
	kept := e.Queue[:0]
	for _, v := range e.Queue {
		if is(v) {
			e.Lower()
		} else {
			kept = append(kept, v)
		}
	}
	clear(e.Queue[len(kept):])
	e.Queue = kept
}

// Close wakes waiting goroutines, and closes the file.
func (e *Events[T]) Close() {
	e.closed = true
	e.Raise()
	e.wake()
	if e.asleep == 0 {
		e.Signal.Close()
	}
}

// Nudge wakes goroutines that wait for the file outside this package's calls.
func (e *Events[T]) Nudge() {
	if e.closed {
		return
	}
	e.Raise()
	if e.nudged { // the file was not read since; raising it again still wakes a goroutine that waits for a change
		e.Lower()
	}
	e.nudged = true
}

// Wait takes the next event, and waits for one unless the file does not block. It is called with the fabric's lock, and
// releases it while it waits. A virtual clock advances during the wait; if the file does not block, it advances if
// lookingWaits is set. A signal that the caller's thread handles during the wait ends it with EINTR. With a waiter, it
// returns nap.Asleep instead of waiting, and is called again when the waiter is woken.
func (e *Events[T]) Wait(c *Core, lookingWaits bool, w *nap.Waiter) (v T, errno runtime.Errno) {
	for {
		if e.closed { // the file may be another's by now
			return v, syscall.EINVAL
		}
		if e.nudged {
			e.nudged = false
			e.Lower()
		}
		if len(e.Queue) > 0 {
			break
		}
		blocks := e.Blocks()
		if (blocks || lookingWaits) && c.Clock.Step(c.Work) && (blocks || len(e.Queue) > 0) {
			c.Unlock() // time can go on for ever
			c.Mu.Lock()
			continue
		}
		if !blocks {
			if lookingWaits {
				c.Clock.Await(e)
			}
			return v, syscall.EAGAIN
		}
		if w != nil && w.Interrupted != 0 {
			return v, w.Interrupted
		}
		if w != nil && w.Prepare(func() { e.leave(c, w) }) == nil { // else too many files are open
			if e.waiters == nil {
				e.waiters = map[*nap.Waiter]struct{}{}
			}
			e.waiters[w] = struct{}{}
			return v, nap.Asleep
		}
		e.asleep++
		errno = e.Sleep(c.Unlock, c.Mu.Lock, c.Clock.IsVirtual())
		if e.asleep--; e.closed && e.asleep == 0 {
			e.Signal.Close()
		}
		if errno != 0 && !e.closed && len(e.Queue) == 0 {
			return v, errno
		}
	}
	v = e.Queue[0]
	e.Queue = slices.Delete(e.Queue, 0, 1)
	e.Lower()
	return v, 0
}

// leave ends the wait of a thread outside Go.
func (e *Events[T]) leave(c *Core, w *nap.Waiter) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	delete(e.waiters, w)
}

// Reports counts the events of an object that a program has received, and those that it has acknowledged.
type Reports struct{ Got, Acked uint32 }

// Acknowledged counts acknowledgements, and wakes their waiters. The caller holds Core.Mu.
func (c *Core) Acknowledged(r *Reports, n uint32) {
	r.Acked += n
	c.Acked.Broadcast()
}

// Settled reports whether the program has acknowledged all received events.
func (r *Reports) Settled() bool { return int32(r.Got-r.Acked) <= 0 }

// Settle waits until the program has acknowledged all received events. It releases the fabric's lock while it waits.
// The caller holds Core.Mu.
func (c *Core) Settle(r *Reports) {
	c.Work()
	for !r.Settled() {
		c.Acked.Wait()
	}
}
