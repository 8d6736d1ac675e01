// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// openDevice is a device opened by the connection manager for all identifiers on it.
type openDevice struct {
	cm      *Manager
	device  *verbs.Device
	context *verbs.Context
	pd      *verbs.PD
	domain  ibv.Ptr[ibv.XRCD] // 0: not created
	uses    int
}

// open opens a device, or returns the open one with another reference, which put releases.
func (c *Manager) open(d *verbs.Device) (*openDevice, runtime.Errno) {
	s := c.opened[d]
	if s == nil {
		context, errno := d.Open()
		if errno != 0 {
			return nil, errno
		}
		context.Keep(true)
		s = &openDevice{cm: c, device: d, context: context}
		c.opened[d] = s
	}
	if s.pd == nil {
		pd, errno := s.context.NewPD()
		if errno != 0 {
			return nil, errno
		}
		s.pd = pd
	}
	s.uses++
	s.context.Keep(false)
	return s, 0
}

// put releases a reference. As in librdmacm the context stays open, because programs may use it after they have freed
// the list or destroyed the identifier.
func (s *openDevice) put() {
	if s.uses--; s.uses > 0 {
		return
	}
	if x := verbs.Find[verbs.XRCD](uint64(s.domain)); x != nil && x.Close() == 0 {
		s.domain = 0
	}
	if s.pd.Dealloc() == 0 {
		s.pd = nil
	}
	s.context.Keep(true)
	if s.device.Gone {
		s.close()
	}
}

// close closes the context unless it has objects of the program.
func (s *openDevice) close() {
	if s.uses == 0 && s.pd == nil && s.context.Close() == 0 {
		delete(s.cm.opened, s.device)
	}
}

// Rest closes the contexts without references. The caller holds Core.Mu.
func (c *Manager) Rest() {
	for _, s := range c.opened {
		s.close()
	}
}

// attach sets the device in the identifier's record.
func (id *identifier) attach() runtime.Errno {
	if id.device == nil || id.shares != nil {
		return 0
	}
	s, errno := id.cm.open(id.device)
	if errno != 0 {
		return errno
	}
	id.shares = s
	id.record.Verbs, id.record.PD, id.record.PortNum = s.context.Address(), ibv.PtrTo(s.pd.Record), verbs.PortNum
	return 0
}

// deviceList is a result of rdma_get_devices.
type deviceList struct {
	cm      *Manager
	devices []*openDevice
}

func (l *deviceList) Fabric() *engine.Engine { return &l.cm.Engine }

// devices is rdma_get_devices.
func (c *Manager) devices(count ibv.Ptr[int32]) (uint64, runtime.Errno) {
	c.Lock()
	defer c.Unlock()
	devices := c.Present()
	contexts, errno := verbs.AllocateList[ibv.Ptr[ibv.Context]](len(devices) + 1)
	if errno != 0 {
		return 0, errno
	}
	l := &deviceList{cm: c}
	for i, d := range devices {
		s, errno := c.open(d)
		if errno != 0 {
			for _, s := range l.devices {
				s.put()
			}
			verbs.Free(&contexts[0])
			return 0, errno
		}
		l.devices, contexts[i] = append(l.devices, s), s.context.Address()
	}
	if count != 0 {
		*count.Deref() = int32(len(devices))
	}
	verbs.Enter(&contexts[0], l)
	return mem.AddressOf(&contexts[0]), 0
}

// freeDevices is rdma_free_devices.
func freeDevices(of ibv.Ptr[ibv.Ptr[ibv.Context]]) runtime.Errno {
	verbs.LockedDo(of, func(l *deviceList) runtime.Errno {
		for _, s := range l.devices {
			s.put()
		}
		verbs.Forget(of.Deref())
		return 0
	})
	return 0
}

// xrcDomain returns the XRC domain of all identifiers on the device.
func (id *identifier) xrcDomain() (ibv.Ptr[ibv.XRCD], runtime.Errno) {
	s := id.shares
	if s.domain == 0 {
		attr := &ibv.XRCDInitAttr{CompMask: ibv.XRCD_INIT_ATTR_FD | ibv.XRCD_INIT_ATTR_OFLAGS, FD: -1,
			Oflags: verbs.OCreate}
		address, errno := verbs.OpenXRCD(s.context, attr)
		if errno != 0 {
			return 0, errno
		}
		s.domain = ibv.Ptr[ibv.XRCD](address)
	}
	return s.domain, 0
}
