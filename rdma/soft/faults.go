package soft

import "time"

// Faults cause failures on a fabric. The zero value causes none. The same seed gives the same faults to the same messages
// in the same order.
type Faults struct {
	Seed uint64
	// Drop, Duplicate and Delay are probabilities from 0 to 1: that a message, or for Drop its acknowledgement, is lost,
	// arrives twice, or is late by Late. Connected queue pairs execute a repeated message once; a repeated datagram is
	// received twice.
	Drop, Duplicate, Delay float64
	Late                   time.Duration
	// NotReady answers every message of a reliable connection that needs a receive as if there were none, with an RNR
	// timer of 10 µs.
	NotReady bool
	// NoRoute makes resolving a route fail with RDMA_CM_EVENT_ROUTE_ERROR.
	NoRoute bool
	// FailAllocation is the number of the allocation that fails, counted from 1 since the faults were set; 0 means none.
	FailAllocation int
}

// Counters count events on a fabric since its creation, whether caused by faults or by programs.
type Counters struct {
	Lost       uint64 // lost messages of connected queue pairs, or their acknowledgements
	Duplicates uint64 // repeated messages that connected queue pairs did not execute again
	NotReady   uint64 // answers "receiver not ready" (RNR)
}
