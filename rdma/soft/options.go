package soft

import (
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Options say what a fabric is like. The zero value has the devices soft0 and soft1 and no faults.
type Options struct {
	// Devices are those of the fabric; none means two of them.
	Devices []DeviceOptions
	// Virtual lets time stand still: it goes on, to the next thing that is due, when a completion queue is polled in vain or an event is
	// waited for, and by Advance; asynchronous events that are read without blocking do not count. So timeouts cost no time, and one goroutine's program always ends in the same way.
	Virtual bool
	// CMResponse is how long the connection manager waits for an answer before it sends a message again, 15 times; 4.3 s by default, as Linux does.
	CMResponse time.Duration
	// Faults are those at the start; SetFaults changes them.
	Faults Faults
}

// DeviceOptions say what a device is like. What is zero has a default.
type DeviceOptions struct {
	Name    string     // soft0, soft1, ... by default
	Address netip.Addr // its address for the connection manager, of which its RoCE v2 GID is made; 127.0.0.1, 127.0.0.2, ... by default
	PKeys   []uint16   // table of partition keys; {0xffff} by default
	MTU     ibv.MTU    // active MTU; 4096 bytes by default
	// Persistent lets memory be registered for flushes to persistence, as if it outlived the machine.
	Persistent bool
	// Down is a device whose link is down from the start, or for its peers one that is gone; SetLink changes it.
	Down bool
}
