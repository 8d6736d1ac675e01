// SPDX-License-Identifier: BSD-2-Clause

package readiness

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/internal/yield"
)

// threads is the number of threads that waits currently keep.
var threads atomic.Int64

const mostThreads = 32

// KeepThread makes waits keep their threads, which sleep in the system call, while fewer than 32 do so. Such a thread
// wakes at once; with the netpoller, the thread that watches all descriptors must wake first and then wake another.
func (r *FD) KeepThread(keep bool) { r.keep.Store(keep) }

// waitWithThread is Wait that keeps the thread, unless done is false.
func (r *FD) waitWithThread(ctx context.Context, try, stop func() bool) (done, got bool, err error) {
	defer threads.Add(-1)
	if threads.Add(1) > mostThreads {
		return false, false, nil
	}
	k, err := r.thread() // before stop is asked, as in Wait
	if k == nil || err != nil {
		return false, false, nil
	}
	r.leavePoller()
	for ctx.Err() == nil && !stop() {
		if !r.follow(ctx) {
			return true, false, os.ErrClosed
		}
		if try() {
			return true, true, nil
		}
		r.yield()
		readable, err := k.sleep()
		if err != nil {
			return true, false, err
		}
		if readable && try() { // try at once: this is the awaited event
			return true, true, nil
		}
	}
	return true, false, nil
}

// leavePoller removes the descriptor from the netpoller, which would wake another thread. The caller holds Turn.
func (r *FD) leavePoller() {
	if own := r.own.Swap(nil); own != nil {
		own.file.Close()
	}
}

// yieldEvery is less than the 10 ms after which the scheduler retakes the P of a goroutine in a system call, and then
// again and again, until the goroutine is rescheduled. Each time wakes the scheduler's own thread.
const yieldEvery = 4 * time.Millisecond

// yield reschedules the goroutine from time to time.
func (r *FD) yield() {
	if now := time.Now(); now.Sub(r.yielded) > yieldEvery {
		r.yielded = now
		yield.Here()
	}
}
