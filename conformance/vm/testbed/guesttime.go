// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// PeerAckTimeout is the ACK timeout of queue pairs whose peer is another guest, in tests that are not about timeouts:
// 4.3 s before each of up to seven retries. With the default of streams, 0.54 s, posting ends in RETRY_EXC if the host
// does not schedule the other guest for 4 s.
const PeerAckTimeout = 20

// GuestTime returns a context that ends when the test ends, or once this guest has run for d. Time in which the host
// did not run the guest does not count.
func GuestTime(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background()) // cleanup functions may wait, too
	t.Cleanup(func() { cancel(nil) })
	tick := time.NewTicker(guestTick)
	go func() {
		defer tick.Stop()
		for left, last := d, time.Now(); left > 0; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				now := time.Now()
				left -= ran(now.Sub(last))
				last = now
			}
		}
		cancel(fmt.Errorf("%w: the guest has run for %v", context.DeadlineExceeded, d))
	}()
	return ctx
}

const guestTick = 50 * time.Millisecond

// ran returns how long the guest ran between two ticks. If a tick is late by more than its period, the host did not run
// the guest.
func ran(elapsed time.Duration) time.Duration { return min(elapsed, 2*guestTick) }
