// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// AdoptDevice returns a Device for a context that another library, such as librdmacm, has opened. Close does not close
// the context, which belongs to that library, but calls release, which may be nil. The Device reads the context's
// asynchronous events, so nothing else may read them.
//
// C: ibv_get_device_name, ibv_get_device_guid, ibv_get_device_index
//
// Man: ibv_get_device_name(3), ibv_get_device_guid(3), ibv_get_device_index(3)
func AdoptDevice(c *ibv.Context, release func() error) (*Device, error) {
	if c == nil {
		return nil, isNil("ibv_get_device_name", "", "context")
	}
	d := c.Device.Deref()
	info := DeviceInfo{Index: -1, NodeType: d.NodeType, Transport: d.TransportType,
		Backend: cmp.Or(runtime.BackendOf(uintptr(unsafe.Pointer(c))), runtime.Native)}
	var err error
	if info.Name, err = libibverbs.GetDeviceName(d); err != nil {
		return nil, wrap("ibv_get_device_name", "", err)
	}
	if info.GUID, err = libibverbs.GetDeviceGUID(d); err != nil {
		return nil, wrap("ibv_get_device_guid", info.Name, err)
	}
	if index, err := libibverbs.GetDeviceIndex(d); err == nil {
		info.Index = index
	}
	return adoptDevice(c, info, func(*ibv.Context) error {
		if release == nil {
			return nil
		}
		return release()
	})
}

// CreateQPBy is CreateQPEx with functions of another library that create and destroy the queue pair, for example
// rdma_create_qp_ex and rdma_destroy_qp. The new queue pair may be in any state. Errors name verb. If create fails, it
// is called again with smaller capacities: first without the slots for drains, then to find the capacity that is too
// large. Queue pairs from these attempts are destroyed at once.
func (d *Device) CreateQPBy(verb string, attr *ibv.QPInitAttrEx, o QueueOptions,
	create func(own *ibv.QPInitAttrEx) (*ibv.QP, error), destroy func(*ibv.QP) error) (*QP, error) {
	return d.createQPEx(verb, attr, o, create, destroy)
}

// CreateSRQBy is like CreateQPBy, for shared receive queues: it is CreateSRQEx with functions of another library.
func (d *Device) CreateSRQBy(verb string, attr *ibv.SRQInitAttrEx, o QueueOptions,
	create func(own *ibv.SRQInitAttrEx) (*ibv.SRQ, error), destroy func(*ibv.SRQ) error) (*SRQ, error) {
	return d.createSRQEx(verb, attr, o, create, destroy)
}
