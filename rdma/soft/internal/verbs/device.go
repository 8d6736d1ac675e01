// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"bytes"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// Capabilities of a device.
const (
	maxInline  = 1024
	maxQPWR    = 1 << 15
	maxCQE     = 1 << 22
	maxSRQWR   = 1 << 15
	MaxReads   = 128
	maxMRSize  = 1 << 47
	PortNum    = 1
	maxTags    = 1 << 14
	maxTagOps  = 1 << 12
	AckDelay   = 15        // code of the maximum time before an acknowledgement
	clockKHz   = 1_000_000 // cycles are nanoseconds
	maxSRQs    = 1 << 14
	GIDEntries = 256 // the range of an index
)

// Device is a device of a fabric, with one port.
type Device struct {
	engine.Port
	Record     *ibv.Device
	Index      int
	Persistent bool // memory can be registered as persistent
	Contexts   []*Context
	Lists      int                            // number of results of ibv_get_device_list with the device
	inodes     map[string]*resource.XRCDomain // XRC domains by file
	handles    uint32                         // last handle assigned
	dmUsed     uint64                         // allocated bytes of device memory
	Has        Limits                         // numbers of objects
	Limits     Limits
	Released   func() // called by the last user of a removed device
}

// NewDevice returns a device with a port and a name. The caller sets the port's addresses.
func NewDevice(p engine.Port, name string) (*Device, runtime.Errno) {
	records, errno := AllocateList[ibv.Device](1)
	if errno != 0 {
		return nil, errno
	}
	d := &Device{Port: p, Record: &records[0], inodes: map[string]*resource.XRCDomain{}, Limits: defaultLimits}
	d.MostGroups = mostGroups
	d.Record.NodeType, d.Record.TransportType = ibv.NODE_CA, ibv.TRANSPORT_IB
	copy(d.Record.Name[:len(d.Record.Name)-1], name)
	copy(d.Record.DevName[:len(d.Record.DevName)-1], name)
	Enter(d.Record, d)
	return d, 0
}

// deviceList is a result of ibv_get_device_list.
type deviceList struct {
	on      *engine.Engine
	devices []*Device
}

func (l *deviceList) Fabric() *engine.Engine { return l.on }

// NewDeviceList implements ibv_get_device_list for a fabric. The caller holds Core.Mu.
func NewDeviceList(on *engine.Engine, devices []*Device, count ibv.Ptr[int32]) (uint64, runtime.Errno) {
	list, errno := AllocateList[ibv.Ptr[ibv.Device]](len(devices) + 1)
	if errno != 0 {
		return 0, errno
	}
	for i, d := range devices {
		list[i] = ibv.PtrTo(d.Record)
		d.Lists++
	}
	if count != 0 {
		*count.Deref() = int32(len(devices))
	}
	Enter(&list[0], &deviceList{on, slices.Clone(devices)})
	return mem.AddressOf(&list[0]), 0
}

func freeDeviceList(of ibv.Ptr[ibv.Ptr[ibv.Device]]) runtime.Errno {
	LockedDo(of, func(l *deviceList) runtime.Errno {
		Forget(of.Deref())
		for _, d := range l.devices {
			d.Lists--
			d.Release()
		}
		return 0
	})
	return 0
}

// Name returns the device's name.
func (d *Device) Name() string {
	name, _, _ := bytes.Cut(d.Record.Name[:], []byte{0})
	return string(name)
}

// ReportEvent queues an event of the port for every context of the device.
func (d *Device) ReportEvent(event ibv.EventType) {
	for _, c := range d.Contexts {
		c.portEvent(event)
	}
}

// HWCounters returns the counters of a context's device, or nil if the context has no device. Package rdma calls it:
// for a device that another library has opened, package rdma has the context but not the fabric.
func (h *host) HWCounters(c *ibv.Context) map[string]uint64 {
	of := locked[Context](mem.AddressOf(c))
	if of == nil {
		return nil
	}
	defer of.Fabric().Unlock()
	if of.Device.Gone {
		return nil
	}
	return of.Device.Counters()
}
