package rdma

import (
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// AdoptDevice makes a Device of a context that another library has opened: librdmacm's, say. What is made from it is used like any other
// object. Close, which as ever wants all that to be closed before, ends with release, which may be nil, instead of closing the context: it is
// the library's as before. The Device reads the context's asynchronous events, so nobody else may.
//
// C: ibv_get_device_name, ibv_get_device_guid, ibv_get_device_index
//
// Man: ibv_get_device_name(3), ibv_get_device_guid(3), ibv_get_device_index(3)
func AdoptDevice(c *ibv.Context, release func() error) (*Device, error) {
	d := c.Device.Deref()
	info := DeviceInfo{Index: -1, NodeType: d.NodeType, Transport: d.TransportType, Backend: runtime.BackendOf(uintptr(unsafe.Pointer(c)))}
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

// CreateQPBy is CreateQPEx by functions of another library, which make a queue pair, in whatever state, and destroy it: rdma_create_qp_ex and
// rdma_destroy_qp, say. verb is for errors. When the device refuses, create is called again, for smaller queue pairs: without the slots that a
// drain needs, and then to find out what was too much; of those that are made then, each is destroyed at once.
func (d *Device) CreateQPBy(verb string, attr *ibv.QPInitAttrEx, o QueueOptions, create func(own *ibv.QPInitAttrEx) (*ibv.QP, error), destroy func(*ibv.QP) error) (*QP, error) {
	return d.createQPEx(verb, attr, o, create, destroy)
}

// CreateSRQBy is CreateSRQEx by functions of another library, as with CreateQPBy.
func (d *Device) CreateSRQBy(verb string, attr *ibv.SRQInitAttrEx, o QueueOptions, create func(own *ibv.SRQInitAttrEx) (*ibv.SRQ, error), destroy func(*ibv.SRQ) error) (*SRQ, error) {
	return d.createSRQEx(verb, attr, o, create, destroy)
}
