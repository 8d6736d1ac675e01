// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Options configure a fabric. The zero value has the devices soft0 and soft1 and no faults.
type Options struct {
	// Devices are the fabric's devices; by default soft0 and soft1.
	Devices []DeviceOptions
	// Virtual selects a virtual clock. It advances to the next timer when a poll finds no completion or a goroutine
	// waits for an event, and by Advance. Reading asynchronous events without blocking does not advance it. Timeouts
	// then take no time, and a program with one goroutine is deterministic.
	Virtual bool
	// CMResponse is the time the connection manager waits for an answer before each of its 15 retransmissions. The
	// default is 4.3 s, as on Linux.
	CMResponse time.Duration
	// Trace records where each object is created, for Held and for errors of Close.
	Trace bool
	// ExactCaps grants queue pairs exactly the requested capacities. Otherwise, as on Soft-RoCE, inline data may also
	// use the space of scatter/gather entries, 16 bytes each, which hides a request for too little inline data. libmlx5
	// grants at least 60 bytes and libmlx4 28; other adapters grant no more than requested.
	ExactCaps bool
	// Faults are the initial faults; SetFaults changes them.
	Faults Faults
}

// DeviceOptions configure a device. Zero fields have defaults.
type DeviceOptions struct {
	Name    string     // soft0, soft1, ... by default
	Address netip.Addr // for the connection manager and the RoCE v2 GID; 127.0.0.1, 127.0.0.2, ... by default
	PKeys   []uint16   // table of partition keys; {0xffff} by default
	MTU     ibv.MTU    // active MTU; 4096 bytes by default
	// Persistent allows memory regions with ACCESS_FLUSH_PERSISTENT, as if the memory were persistent.
	Persistent bool
	// Wire makes the device speak RoCE v2 over UDP port 4791 to devices at other addresses: software devices of other
	// processes and hosts, Soft-RoCE and adapters. Its only GID is then Address, which must be an address of this
	// machine, and its MTU is limited by the interface with that address.
	Wire bool
	// Down starts the device with its link down, so that peers do not reach it. SetLink changes it.
	Down bool
}
