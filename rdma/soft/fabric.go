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

// Fabric is a set of devices that reach each other. All its methods may be called by any number of goroutines. New
// makes one; the zero value has no devices, and refuses everything.
type Fabric struct{ fabric *device.Fabric }

// errZero is the error of a Fabric or a Capture that nothing has made.
var errZero = fmt.Errorf("soft: the object was never created: it is the zero value of its type: %w", syscall.EINVAL)

// New makes a fabric, which stays until Close.
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

// Default is the fabric that everyone in the process shares, with the devices soft0 and soft1. It is made when it is
// first asked for.
//
// On it, as on any fabric without faults, requests have usually completed when the call that posts them returns, as
// never on hardware. The environment variable GOVERBS_SOFT_LATE is the time that each message takes instead, "50us" for
// example, or more: Faults with Delay 1 and that time in Late. It finds programs that poll once, or read memory,
// without waiting for the completion. What needs no message, such as binding a window, is done at once all the same.
// Programs with more rights than their user ignore the variable.
func Default() (*Fabric, error) { return defaultFabric() }

var defaultFabric = sync.OnceValues(func() (*Fabric, error) {
	faults, err := late(rights.Getenv(lateVariable))
	if err != nil {
		return nil, err
	}
	return New(Options{Faults: faults})
})

// AddDevice adds a device to the fabric. Without a name it is called soft with its number, counted from 0.
func (f *Fabric) AddDevice(o DeviceOptions) error {
	if f.fabric == nil {
		return errZero
	}
	return f.fabric.AddDevice(device.DeviceOptions(o))
}

// RemoveDevice takes a device away, and says whether there was one of the name. Programs that have it open get an
// event, and their queue pairs break; what they ask of it fails with EIO, but for destroying. Peers hear nothing any
// more.
func (f *Fabric) RemoveDevice(name string) bool {
	if f.fabric == nil {
		return false
	}
	return f.fabric.RemoveDevice(name)
}

// SetLink takes the link of a device down or up again, and says whether there is a device of the name. While it is
// down, nothing reaches the device or leaves it.
func (f *Fabric) SetLink(name string, up bool) bool {
	if f.fabric == nil {
		return false
	}
	return f.fabric.SetLink(name, up)
}

// AddAddress gives a device one more address, and so another GID.
func (f *Fabric) AddAddress(name string, address netip.Addr) error {
	if f.fabric == nil {
		return errZero
	}
	return f.fabric.AddAddress(name, address)
}

// MoveAddress gives an address of one device to another, as a bond of network devices does that fails over. Connection
// manager IDs that are bound to it get RDMA_CM_EVENT_ADDR_CHANGE. What is connected stays on the devices that it is on.
func (f *Fabric) MoveAddress(address netip.Addr, to string) error {
	if f.fabric == nil {
		return errZero
	}
	return f.fabric.MoveAddress(address, to)
}

// AddressOwner says what keeps an ID from having an address; "" is nothing. It is for error texts.
func (f *Fabric) AddressOwner(of *rdmacm.CMID, address netip.AddrPort) string {
	if f.fabric == nil {
		return ""
	}
	return f.fabric.AddressOwner(of, address)
}

// Addresses are the addresses of the fabric's devices, each with the name of its device.
func (f *Fabric) Addresses() map[netip.Addr]string {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.Addresses()
}

// SetFaults changes what goes wrong from now on. With values that mean nothing it fails and changes nothing.
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

// FailedAllocation says whether Faults.FailAllocation made an allocation fail since it was last asked. It is for error
// texts, which ask it by themselves.
func (f *Fabric) FailedAllocation() bool {
	if f.fabric == nil {
		return false
	}
	return f.fabric.FailedAllocation()
}

// Counters are those of the fabric.
func (f *Fabric) Counters() Counters {
	if f.fabric == nil {
		return Counters{}
	}
	return Counters(f.fabric.Counters())
}

// HWCounters are what a device counted since it was added, or nil if there is no device of the name. rdma's
// Device.HWCounters has the same. docs/wire.md says what each counts; names are those of the kernel's hw_counters where
// a driver counts the same.
func (f *Fabric) HWCounters(device string) map[string]uint64 {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.HWCounters(device)
}

// Advance lets a virtual clock go on by a time, and what is due happen. With a real clock it does nothing.
func (f *Fabric) Advance(d time.Duration) {
	if f.fabric == nil {
		return
	}
	f.fabric.Advance(d)
}

// Now is the fabric's time since it was made.
func (f *Fabric) Now() time.Duration {
	if f.fabric == nil {
		return 0
	}
	return f.fabric.Now()
}

// Resources counts what programs hold of the fabric: "ctx" (open devices), "pd", "mr", "mw", "cq", "qp", "srq", "ah",
// "dm", "buf", "xrcd", "td", "dmah", "channel", "cm_id", "event channel" and "address info". What is 0 is not in it.
func (f *Fabric) Resources() map[string]int {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.Resources()
}

// Held tells what Resources counts, sorted: one text for each place, "cq, 2 mr, qp made at shelf/server.go:12
// (main.serve) by rdma.Device.NewRC", or one for each kind, "2 mr", without Options.Trace. Connections that a listener
// accepted were made where that was asked for. What IDs and connections share has no place: those that keep it are
// there themselves.
func (f *Fabric) Held() []string {
	if f.fabric == nil {
		return nil
	}
	return f.fabric.Held()
}

// Close gives up the fabric's memory. It fails with EBUSY while a program has a device or an event channel open, and
// says what the program holds. The fabric is not to be used after it.
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

// Function gives the functions of a library that take no object of the fabric's, and those that do.
func (f *Fabric) Function(library, name string) runtime.Func { return f.fabric.Function(library, name) }
