package soft

import "time"

// Faults are what goes wrong on a fabric. The zero value is nothing. The same seed gives the same faults to the same messages in the
// same order.
type Faults struct {
	Seed uint64
	// Drop, Duplicate and Delay are how likely it is, from 0 to 1, that a message, or for Drop its acknowledgement, is lost, comes twice or
	// is late by Late. Of what comes twice, connected queue pairs notice it and carry it out once; of a datagram two are received.
	Drop, Duplicate, Delay float64
	Late                   time.Duration
	// NotReady lets every message of a reliable connection that takes a receive be answered as if there were none, with 10 µs to wait.
	NotReady bool
	// NoRoute lets no path be found to an address that was resolved: RDMA_CM_EVENT_ROUTE_ERROR follows.
	NoRoute bool
	// FailAllocation is the allocation that finds no memory, counted from 1 since the faults were set; 0 is none.
	FailAllocation int
}

// Counters tell what happened on a fabric since it was made, by faults or by what programs did.
type Counters struct {
	Lost       uint64 // messages of connected queue pairs, or their acknowledgements, that did not arrive
	Duplicates uint64 // messages that connected queue pairs had carried out before, and did not again
	NotReady   uint64 // answers of receivers that they were not ready
}
