// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/yield"
	"github.com/goverbs/goverbs/rdma/internal/thread"
)

// DefaultBusyPoll is the time for which [CQ.Wait] polls before it sleeps, as long as polling finds completions.
// Sleeping and waking take about as long.
const DefaultBusyPoll = 50 * time.Microsecond

const (
	pollsPerYield = 32 // polls between yields
	probeInterval = 8  // one wait in probeInterval polls first even if the last attempt found nothing
)

// busyPoll is the state of polling before waits sleep.
type busyPoll struct {
	most   atomic.Int64 // nanoseconds
	pays   atomic.Bool  // the last attempt found completions
	waited atomic.Uint32
}

// SetBusyPoll sets the time for which Wait polls before it sleeps. The default is [DefaultBusyPoll]; 0 disables
// polling. If a wait finds no completion in that time, only one in eight of the following waits polls, until one
// succeeds. The goroutine yields while it polls.
func (q *CQ) SetBusyPoll(d time.Duration) { q.busy.most.Store(int64(d)) }

// spin polls for up to the busy-poll time before a wait sleeps.
func (q *CQ) spin(to into) (n int, err error) {
	b := &q.busy
	most := time.Duration(b.most.Load())
	pays := b.pays.Load()
	if most <= 0 || !pays && b.waited.Add(1)%probeInterval != 0 {
		return 0, nil
	}
	for began := time.Now(); time.Since(began) < most; yield.Here() {
		if n, err = q.pollRepeatedly(to); n > 0 || err != nil {
			if !pays {
				b.pays.Store(true)
			}
			return n, err
		}
	}
	if pays {
		b.pays.Store(false)
	}
	return 0, nil
}

// pollRepeatedly polls up to pollsPerYield times.
func (q *CQ) pollRepeatedly(to into) (n int, err error) {
	if to.program == nil {
		q.queue.mu.Lock()
		return q.queue.pollLocked(to.wcs, pollsPerYield)
	}
	for range pollsPerYield {
		if n, err = q.take(to); n > 0 || err != nil {
			break
		}
	}
	return n, err
}

// WaitBusy polls until there is at least one completion, without sleeping. It keeps a processor busy to minimize
// latency; see [PinThread]. It needs no completion channel. Otherwise it behaves like Wait.
//
// Man: ibv_poll_cq(3)
func (q *CQ) WaitBusy(ctx context.Context, dst []ibv.WC) (n int, err error) {
	if err := q.notWaited("ibv_poll_cq", dst); err != nil {
		return 0, err
	}
	return q.waitBusyUntil(ctx, into{wcs: dst}, never)
}

func (q *CQ) waitBusyUntil(ctx context.Context, to into, over func() bool) (n int, err error) {
	for !over() {
		for range pollsPerYield {
			if n, err = q.pollRepeatedly(to); n > 0 || err != nil {
				return n, err
			}
		}
		if err = ctx.Err(); err == nil {
			err = q.failure()
		}
		if err != nil {
			return 0, q.unsignalled("ibv_poll_cq", err)
		}
		yield.Here()
	}
	return 0, nil
}

// PinThread locks the calling goroutine to its thread, and the thread to one processor, until the same goroutine calls
// unpin. Use it with [CQ.WaitBusy]: dedicate a processor of the device's NUMA node, without interrupts, to each polling
// goroutine. Set GOMAXPROCS greater than the number of pinned goroutines; otherwise other goroutines and the garbage
// collector wait for preemption. If the processor does not exist or the process may not use it, the error is EINVAL. On
// systems other than Linux, the error is [ErrNotSupported].
//
// Man: sched_setaffinity(2)
func PinThread(cpu int) (unpin func(), err error) { return thread.Pin(cpu) }
