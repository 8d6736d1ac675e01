// SPDX-License-Identifier: BSD-2-Clause

package rig

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// PeerAckTimeout is the ACK timeout of queue pairs whose peer is another guest, where the test is not about timeouts:
// 4.3 s before each of up to seven retries. The default of streams, 0.54 s, ends in RETRY_EXC when the host does not
// run the other guest for 4 s.
const PeerAckTimeout = 20

// GuestTime returns a context that ends when the test does, or once this guest has run for d. Time in which the host
// did not run the guest does not count.
func GuestTime(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background()) // a cleanup may wait, too
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

// ran returns how much of the time between two ticks the guest ran: a tick that is late by more than its period came
// to a guest that the host had not run.
func ran(elapsed time.Duration) time.Duration { return min(elapsed, 2*guestTick) }
