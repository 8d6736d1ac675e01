// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Options configure a fabric. The zero value has the devices soft0 and soft1 and no faults.
type Options struct {
	// Devices are the fabric's devices; none means two.
	Devices []DeviceOptions
	// Virtual selects a virtual clock. It advances to the next timer when a poll finds no completion or a goroutine
	// waits for an event, and by Advance. Reading asynchronous events without blocking does not advance it. Timeouts
	// then take no time, and a program of one goroutine always runs in the same way.
	Virtual bool
	// CMResponse is how long the connection manager waits for an answer before it sends a message again, 15 times; 4.3
	// s by default, as on Linux.
	CMResponse time.Duration
	// Trace notes where each object is made, for Held and for errors of Close.
	Trace bool
	// ExactCaps gives queue pairs exactly the capacities that they ask for. Otherwise they may use the room of their
	// entries for inline data, 16 bytes for each, as on Soft-RoCE, and a program that asks for too little inline data
	// works. libmlx5 grants at least 60 bytes, libmlx4 28; other adapters grant no more than was asked for.
	ExactCaps bool
	// Faults are the faults at the start; SetFaults changes them.
	Faults Faults
}

// DeviceOptions configure a device. Fields that are zero have defaults.
type DeviceOptions struct {
	Name    string     // soft0, soft1, ... by default
	Address netip.Addr // for the connection manager and the RoCE v2 GID; 127.0.0.1, 127.0.0.2, ... by default
	PKeys   []uint16   // table of partition keys; {0xffff} by default
	MTU     ibv.MTU    // active MTU; 4096 bytes by default
	// Persistent allows memory regions with ACCESS_FLUSH_PERSISTENT, as if the memory were persistent.
	Persistent bool
	// Wire lets the device speak RoCE v2 over UDP, port 4791, to devices at other addresses: of other processes and
	// hosts, of Soft-RoCE, and adapters. Its only GID is then Address, which has to be one of this machine's, and its
	// MTU is at most what the interface with Address takes.
	Wire bool
	// Down starts the device with its link down; to its peers it is gone. SetLink changes it.
	Down bool
}
