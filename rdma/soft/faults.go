// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"syscall"
	"time"
)

// Faults cause failures on a fabric. The zero value causes none. [New] and SetFaults reject invalid values. The same
// seed causes the same faults for the same messages in the same order.
type Faults struct {
	Seed uint64
	// Drop, Duplicate and Delay are probabilities from 0 to 1 that a message is lost, arrives twice, or is delayed by
	// Late, which then must not be 0. Drop also applies to acknowledgements. Connected queue pairs execute a repeated message once; a repeated
	// datagram is received twice.
	Drop, Duplicate, Delay float64
	Late                   time.Duration
	// NotReady sends an RNR NAK, with a timer of 10 µs, for every message of a reliable connection that needs a
	// receive.
	NotReady bool
	// NoRoute makes resolving a route fail with RDMA_CM_EVENT_ROUTE_ERROR.
	NoRoute bool
	// FailAllocation is the number of the allocation that fails, counted from 1 since the faults were set. With 0, none
	// fails. Each object counts that C would allocate: device list, context, PD, region, channel, queue, ID, event.
	FailAllocation int
}

// check rejects invalid values. For example, a probability of 5 probably means 5 %.
func (o Faults) check() error {
	for _, f := range []struct {
		name  string
		value float64
	}{{"Drop", o.Drop}, {"Duplicate", o.Duplicate}, {"Delay", o.Delay}} {
		if !(f.value >= 0 && f.value <= 1) { // also for NaN
			return fmt.Errorf("soft: Faults.%s is %v; use a probability from 0 to 1: %w", f.name, f.value,
				syscall.EINVAL)
		}
	}
	if o.Late < 0 {
		return fmt.Errorf("soft: Faults.Late is %v; it cannot be negative: %w", o.Late, syscall.EINVAL)
	}
	if o.Delay > 0 && o.Late == 0 {
		return fmt.Errorf("soft: Faults.Delay is %v without Late; set Late to the delay: %w", o.Delay, syscall.EINVAL)
	}
	if o.FailAllocation < 0 {
		return fmt.Errorf("soft: Faults.FailAllocation is %d; allocations are counted from 1: %w", o.FailAllocation,
			syscall.EINVAL)
	}
	return nil
}

// lateVariable is the environment variable with the delay of each message on the fabric of Default.
const lateVariable = "GOVERBS_SOFT_LATE"

// delayFaults returns the faults for a delay such as "50us", or none for "".
func delayFaults(by string) (Faults, error) {
	if by == "" {
		return Faults{}, nil
	}
	d, err := time.ParseDuration(by)
	if err != nil || d < 0 {
		return Faults{}, fmt.Errorf("soft: %s=%q is not a valid delay; use a duration such as 50us: %w", lateVariable,
			by, syscall.EINVAL)
	}
	return Faults{Delay: 1, Late: d}, nil
}

// Counters count events on a fabric since its creation, whether caused by faults or by programs. HWCounters returns
// more, for each device.
type Counters struct {
	Lost       uint64 // lost messages of connected queue pairs, or their acknowledgements
	Duplicates uint64 // repeated messages that connected queue pairs did not execute again
	NotReady   uint64 // RNR NAKs
	NoReceive  uint64 // datagrams and UC messages dropped without a receive
	Retries    uint64 // retransmissions of a lost message or packet
	Gaps       uint64 // packets missing when a later one arrived, on a wire of packets
}
