// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/soft/internal/cm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/runtime"
)

// Fabric is a set of connected devices. Its methods may be called concurrently. Create one with New; the zero value has
// no devices, and its methods fail.
type Fabric struct{ fabric *device.Fabric }

// errZero is the error of a zero Fabric or Capture.
var errZero = fmt.Errorf("soft: the object is a zero value; create it with its constructor: %w", syscall.EINVAL)

// New creates a fabric, which exists until Close.
func New(o Options) (*Fabric, error) {
	if err := o.Faults.check(); err != nil {
		return nil, err
	}
	own := device.Options{Virtual: o.Virtual, Trace: o.Trace, ExactCaps: o.ExactCaps, Faults: device.Faults(o.Faults)}
	for _, d := range o.Devices {
		own.Devices = append(own.Devices, device.DeviceOptions(d))
	}
	f, err := device.New(own)
	if err != nil {
		return nil, err
	}
	f.Manage(cm.New(f, o.CMResponse))
	return &Fabric{f}, nil
}

// Default returns the fabric that all packages of the process share, with the devices soft0 and soft1. The first call
// creates it.
//
// On a fabric without faults, requests have usually completed when the post returns, unlike on hardware. The
// environment variable GOVERBS_SOFT_LATE, for example "50us", delays each message of this fabric by at least that time,
// like Faults with Delay 1 and that time in Late. It reveals programs that poll only once, or read memory, without
// waiting for the completion. Requests without a message, such as binding a window, still complete at once. Programs
// with more privileges than their user ignore the variable.
func Default() (*Fabric, error) { return defaultFabric() }

var defaultFabric = sync.OnceValues(func() (*Fabric, error) {
	faults, err := delayFaults(rights.Getenv(lateVariable))
	if err != nil {
		return nil, err
	}
	return New(Options{Faults: faults})
})

// AddDevice adds a device to the fabric. Without a name it is called softN, where N is its number, counted from 0.
func (f *Fabric) AddDevice(o DeviceOptions) error {
	if f.fabric == nil {
		return errZero
	}
	return f.fabric.AddDevice(device.DeviceOptions(o))
}

// RemoveDevice removes a device, and reports whether there was one of that name. Programs that have it open get
// IBV_EVENT_DEVICE_FATAL. Their queue pairs are then in ERR: requests are posted and complete with IBV_WC_WR_FLUSH_ERR,
// and ibv_query_qp still works. Calls that create objects, and waits, return EIO; those that destroy objects work.
// To peers it looks like a dead host.
func (f *Fabric) RemoveDevice(name string) bool {
	if f.fabric == nil {
		return false
	}
	return f.fabric.RemoveDevice(name)
}

// SetLink changes the link state of a device, and reports whether there is a device of that name. While the link is
// down, the device sends and receives nothing.
func (f *Fabric) SetLink(name string, up bool) bool {
	if f.fabric == nil {
		return false
	}
	return f.fabric.SetLink(name, up)
}

// AddAddress adds an address, and thus a GID, to a device.
func (f *Fabric) AddAddress(name string, address netip.Addr) error {
	if f.fabric == nil {
		return errZero
	}
	return f.fabric.AddAddress(name, address)
}

// MoveAddress moves an address to another device, like the failover of a bond. Connection manager IDs bound to it get
// RDMA_CM_EVENT_ADDR_CHANGE. Existing connections stay on their devices.
func (f *Fabric) MoveAddress(address netip.Addr, to string) error {
	if f.fabric == nil {
		return errZero
	}
	return f.fabric.MoveAddress(address, to)
}

// AddressOwner describes the owner of an address that an ID cannot bind to, or returns "". It is for error texts.
func (f *Fabric) AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string {
	if f.fabric == nil {
		return ""
	}
	return f.fabric.AddressOwner(of, address)
}

// Addresses returns the addresses of the fabric's devices with the names of their devices.
func (f *Fabric) Addresses() map[netip.Addr]string {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.Addresses()
}

// SetFaults replaces the faults. If a value is invalid, it returns an error and changes nothing.
func (f *Fabric) SetFaults(o Faults) error {
	if f.fabric == nil {
		return errZero
	}
	if err := o.check(); err != nil {
		return err
	}
	f.fabric.SetFaults(device.Faults(o))
	return nil
}

// FailedAllocation reports whether Faults.FailAllocation made an allocation fail since the last call. It is for error
// texts, which already call it.
func (f *Fabric) FailedAllocation() bool {
	if f.fabric == nil {
		return false
	}
	return f.fabric.FailedAllocation()
}

// Counters returns the counters of the fabric.
func (f *Fabric) Counters() Counters {
	if f.fabric == nil {
		return Counters{}
	}
	return Counters(f.fabric.Counters())
}

// HWCounters returns a device's counters since it was added, or nil if there is no device of that name. rdma's
// Device.HWCounters returns the same. docs/wire.md describes them; names match the kernel's hw_counters where a driver
// counts the same.
func (f *Fabric) HWCounters(device string) map[string]uint64 {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.HWCounters(device)
}

// Advance advances a virtual clock by d and runs the timers that expire. With a real clock it does nothing.
func (f *Fabric) Advance(d time.Duration) {
	if f.fabric == nil {
		return
	}
	f.fabric.Advance(d)
}

// Now returns the time since the fabric was created, by its clock.
func (f *Fabric) Now() time.Duration {
	if f.fabric == nil {
		return 0
	}
	return f.fabric.Now()
}

// Resources returns the number of objects that programs hold, by type: "ctx" (open devices), "pd", "mr", "mw", "cq",
// "qp", "srq", "ah", "dm", "buf", "xrcd", "td", "dmah", "channel", "cm_id", "event channel" and "address info". Zeros
// are omitted.
func (f *Fabric) Resources() map[string]int {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.Resources()
}

// Held lists the objects that Resources counts, sorted. With Options.Trace, each text describes the objects created at
// one place: "cq, 2 mr, qp made at shelf/server.go:12 (main.serve) by rdma.Device.NewRC". Otherwise there is one for
// each type: "2 mr". Connections that a listener accepted are listed under the place of the listen call. Objects shared
// by IDs and connections are not listed; the IDs and connections that use them are.
func (f *Fabric) Held() []string {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.Held()
}

// Close frees the fabric's memory. It fails with EBUSY while a program has a device or an event channel open; the error
// lists the objects. Do not use the fabric after a successful Close.
func (f *Fabric) Close() error {
	if f.fabric == nil {
		return errZero
	}
	err := f.fabric.Close()
	if held := f.Held(); err != nil && len(held) > 0 {
		const most = 8
		more := ""
		if len(held) > most {
			more = fmt.Sprintf(" and %d more", len(held)-most)
			held = held[:most]
		}
		return fmt.Errorf("%w; not closed: %s%s", err, strings.Join(held, ", "), more)
	}
	return err
}

// Function returns a function of a library, for [runtime.Backend].
func (f *Fabric) Function(library, name string) runtime.Func { return f.fabric.Function(library, name) }
