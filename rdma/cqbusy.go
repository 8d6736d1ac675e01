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

// DefaultBusyPoll is how long [CQ.Wait] polls before it sleeps, as long as polling finds completions. It is about the
// time that sleeping and waking take.
const DefaultBusyPoll = 50 * time.Microsecond

const (
	pollsPerYield = 32 // polls in one go
	probeInterval = 8  // one wait in this many polls first even if the last attempt found nothing
)

// busyPoll is the state of polling before a wait sleeps.
type busyPoll struct {
	most   atomic.Int64 // nanoseconds
	pays   atomic.Bool  // the last attempt found completions
	waited atomic.Uint32
}

// SetBusyPoll sets how long Wait polls before it sleeps: initially [DefaultBusyPoll]; 0 turns it off. If nothing comes
// in that time, Wait stops polling, except for one wait in eight. The goroutine yields to others while it polls.
func (q *CQ) SetBusyPoll(d time.Duration) { q.busy.most.Store(int64(d)) }

// linger polls for up to the busy-poll time before a wait sleeps.
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

// takeOften polls up to looks times.
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

// WaitBusy polls until there is at least one completion, without sleeping. It keeps one processor busy to reach the
// lowest latency; see [PinThread]. It needs no channel. Otherwise it behaves like Wait.
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
// unpin. Use it to poll with [CQ.WaitBusy]: give each polling goroutine one processor of the device's NUMA node that
// handles no interrupts and no other pinned thread. Go needs further processors: set GOMAXPROCS greater than the number
// of pinned goroutines, or other goroutines and the garbage collector wait for the scheduler's next preemption. If the
// processor does not exist or this process may not use it, the error is EINVAL. Only Linux has it; elsewhere the error
// is [ErrNotSupported].
//
// Man: sched_setaffinity(2)
func PinThread(cpu int) (unpin func(), err error) { return thread.Pin(cpu) }
