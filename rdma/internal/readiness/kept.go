// SPDX-License-Identifier: BSD-2-Clause

package readiness

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/internal/yield"
)

// threads is the number of threads that waits currently block.
var threads atomic.Int64

const mostThreads = 32

// KeepThread makes waits block their threads in a system call, as long as fewer than 32 do so. Such a thread wakes at
// once. With the netpoller, the thread that watches all descriptors wakes first and must then wake another.
func (r *FD) KeepThread(keep bool) { r.keep.Store(keep) }

// waitWithThread is Wait that blocks the thread. If done is false, the caller must wait otherwise.
func (r *FD) waitWithThread(ctx context.Context, try, stop func() bool) (done, got bool, err error) {
	defer threads.Add(-1)
	if threads.Add(1) > mostThreads {
		return false, false, nil
	}
	k, err := r.thread() // before stop is called, as in Wait
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
		if readable && try() { // this was the event
			return true, true, nil
		}
	}
	return true, false, nil
}

// leavePoller removes the descriptor from the netpoller, which would otherwise wake another thread, too. The caller
// holds Turn.
func (r *FD) leavePoller() {
	if own := r.own.Swap(nil); own != nil {
		own.file.Close()
	}
}

// yieldEvery is less than 10 ms. After that time the scheduler's monitor thread retakes the P of a goroutine in a
// system call, and repeats this until the goroutine is rescheduled. Each time wakes the monitor thread.
const yieldEvery = 4 * time.Millisecond

// yield reschedules the goroutine at that interval.
func (r *FD) yield() {
	if now := time.Now(); now.Sub(r.yielded) > yieldEvery {
		r.yielded = now
		yield.Here()
	}
}
