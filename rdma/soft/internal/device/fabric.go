// SPDX-License-Identifier: BSD-2-Clause

// Package device implements fabrics of software devices: their wires, sockets, faults and clocks, and the interface to
// the connection manager.
package device

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/delayed"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/encoded"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/faulty"
	inprocess "github.com/goverbs/goverbs/rdma/soft/internal/wire/memory"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/packets"
	"github.com/goverbs/goverbs/runtime"
)

// Options configure a fabric; see soft.Options.
type Options struct {
	Devices []DeviceOptions
	Virtual bool
	Faults  Faults
	Trace   bool
	// ExactCaps is soft.Options.ExactCaps.
	ExactCaps bool
	losses    *packets.Losses // for tests: a wire of packets joins all devices, with these losses
}

// DeviceOptions configure a device; see soft.DeviceOptions.
type DeviceOptions struct {
	Name       string
	Address    netip.Addr
	PKeys      []uint16
	MTU        ibv.MTU
	Persistent bool
	Wire       bool
	Down       bool
}

// Fabric is a set of devices that reach each other. All its methods may be called by any number of goroutines. The
// fabric's lock guards the fields from devices on.
type Fabric struct {
	engine.Engine
	captures pcap.Captures // of sent and received packets

	devices []*verbs.Device
	gone    []*verbs.Device // removed devices that programs have open
	made    int             // number of devices added so far
	direct  *inprocess.Wire
	sound   wire.Wire       // the wire without faults
	past    counters.Counts // of removed devices
	manager Manager
}

// wireVariable is the environment variable that selects the wire between all devices, for tests: "encoded" encodes
// every message to bytes, "delayed" delivers it when the clock has advanced, "packets" turns it into RoCE v2 packets,
// and "lossy" drops, duplicates, delays, reorders and corrupts packets, with a virtual clock; see packets.Named.
const wireVariable = "GOVERBS_SOFT_WIRE"

// New creates a fabric, which exists until Close. It needs no lock: the fabric is not shared yet.
func New(o Options) (*Fabric, error) {
	if _, err := verbs.TheHost(); err != nil {
		return nil, err
	}
	if o.Trace {
		made.Want()
	}
	named := rights.Getenv(wireVariable)
	losses, lossy := packets.Named(named)
	f := &Fabric{manager: unmanaged{}, direct: inprocess.New()}
	f.Traced, f.Exact = o.Trace, o.ExactCaps
	f.Start(o.Virtual || lossy) // retransmissions then take no time
	f.sound = f.direct
	switch {
	case o.losses != nil:
		f.sound = f.packetWire(*o.losses)
	case named == "encoded":
		f.sound = encoded.Over(f.direct)
	case named == "delayed":
		f.sound = delayed.Over(f.direct, func(arrive func()) { f.Clock.After(time.Microsecond, arrive) })
	case named == "packets" || lossy:
		f.sound = f.packetWire(losses)
	}
	f.Faulty = faulty.Over(f.sound, f.later)
	f.setFaults(o.Faults)
	if len(o.Devices) == 0 {
		o.Devices = make([]DeviceOptions, 2)
	}
	for _, d := range o.Devices {
		if err := f.AddDevice(d); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// packetWire returns a wire of packets in memory.
func (f *Fabric) packetWire(losses packets.Losses) *packets.Wire {
	w := packets.Over(f.direct, losses, f.later)
	w.Watch(func(p []byte, from, to *packet.Endpoint) {
		for _, c := range f.captures.All() {
			at := time.Now()
			if f.Clock.IsVirtual() {
				at = time.Unix(0, f.Clock.Now())
			}
			c.Packet(at, p, from, to, 0)
		}
	})
	return w
}

// Capture writes packets to a file; soft.Fabric explains it.
func (f *Fabric) Capture(to io.Writer) (*pcap.Capture, error) {
	f.Mu.Lock()
	_, inMemory := f.sound.(*packets.Wire)
	sends := inMemory || f.Outer != nil
	f.Mu.Unlock()
	if !sends {
		return nil, fmt.Errorf("soft: no device of the fabric sends packets, which those with an address do "+
			"(soft@ADDRESS, or DeviceOptions.Wire): %w", syscall.EOPNOTSUPP)
	}
	return f.captures.Start(to)
}

// later calls a function after a time. The caller holds Core.Mu.
func (f *Fabric) later(d time.Duration, fire func()) { f.Clock.After(d, fire) }

// Function returns a function of a library, whether or not it takes an object of the fabric. It needs no lock, because
// the manager does not change.
func (f *Fabric) Function(library, name string) runtime.Func {
	switch {
	case library == "libibverbs" && name == "ibv_get_device_list":
		return abi.Guarded(abi.Func1(f.deviceList))
	case library == "libibverbs" && name == "ibv_import_device":
		return abi.Func1(f.importDevice)
	case library == "librdmacm":
		if own := f.manager.Function(name); own != nil {
			return abi.Guarded(own)
		}
	}
	return verbs.Function(library, name)
}

// Faults configure the faults of a fabric; see soft.Faults.
type Faults = faulty.Faults

// SetFaults replaces the faults from now on.
func (f *Fabric) SetFaults(o Faults) {
	f.Mu.Lock()
	defer f.Unlock()
	f.setFaults(o)
}

// FailedAllocation reports whether a fault made an allocation fail since the last call.
func (f *Fabric) FailedAllocation() bool { return f.Failed.Swap(false) }

// setFaults routes messages through the faulty wire, if there are faults.
func (f *Fabric) setFaults(o Faults) {
	f.Faulty.Set(o)
	f.Failed.Store(false)
	f.Wire = f.sound
	if !f.Faulty.Idle() {
		f.Wire = f.Faulty
	}
	f.Plain = f.Wire == wire.Wire(f.direct)
}
