// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"syscall"
	"time"
)

// Faults cause failures on a fabric. The zero value causes none. [New] and SetFaults refuse values that mean
// nothing. The same seed gives the same faults to the same messages in the same order.
type Faults struct {
	Seed uint64
	// Drop, Duplicate and Delay are probabilities from 0 to 1: that a message, or for Drop its acknowledgement, is
	// lost, arrives twice, or is late by Late. Connected queue pairs execute a repeated message once; a repeated
	// datagram is received twice.
	Drop, Duplicate, Delay float64
	Late                   time.Duration
	// NotReady answers every message of a reliable connection that needs a receive as if there were none, with an RNR
	// timer of 10 µs.
	NotReady bool
	// NoRoute makes resolving a route fail with RDMA_CM_EVENT_ROUTE_ERROR.
	NoRoute bool
	// FailAllocation is the number of the allocation that fails, counted from 1 since the faults were set; 0 means
	// none.
	FailAllocation int
}

// check refuses values that mean nothing: a probability of 5 is most likely one of 5 %.
func (o Faults) check() error {
	for _, f := range []struct {
		name  string
		value float64
	}{{"Drop", o.Drop}, {"Duplicate", o.Duplicate}, {"Delay", o.Delay}} {
		if !(f.value >= 0 && f.value <= 1) { // also for NaN
			return fmt.Errorf("soft: Faults.%s is %v; a probability is from 0 to 1: %w", f.name, f.value, syscall.EINVAL)
		}
	}
	if o.Late < 0 {
		return fmt.Errorf("soft: Faults.Late is %v; it cannot be negative: %w", o.Late, syscall.EINVAL)
	}
	if o.FailAllocation < 0 {
		return fmt.Errorf("soft: Faults.FailAllocation is %d; allocations are counted from 1: %w", o.FailAllocation,
			syscall.EINVAL)
	}
	return nil
}

// lateVariable is the environment variable with the time that each message on the fabric of Default takes.
const lateVariable = "GOVERBS_SOFT_LATE"

// late are the faults of a fabric whose messages take a time, "50us" for example, or none for "".
func late(by string) (Faults, error) {
	if by == "" {
		return Faults{}, nil
	}
	d, err := time.ParseDuration(by)
	if err != nil || d < 0 {
		return Faults{}, fmt.Errorf("soft: %s=%q is not the time that a message takes, like 50us: %w", lateVariable, by,
			syscall.EINVAL)
	}
	return Faults{Delay: 1, Late: d}, nil
}

// Counters count events on a fabric since its creation, whether caused by faults or by programs. HWCounters has more,
// for each device.
type Counters struct {
	Lost       uint64 // lost messages of connected queue pairs, or their acknowledgements
	Duplicates uint64 // repeated messages that connected queue pairs did not execute again
	NotReady   uint64 // answers "receiver not ready" (RNR)
	NoReceive  uint64 // datagrams, and messages of UC, that were dropped for want of a receive
	Retries    uint64 // times that a queue pair went back to a message or packet that was lost
	Gaps       uint64 // packets that were missing when a later one came, on a wire of packets
}
