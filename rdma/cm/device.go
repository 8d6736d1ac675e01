package cm

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// sharedDevice is a context that librdmacm has opened, with what all IDs on it share.
type sharedDevice struct {
	c      uintptr
	device *rdma.Device
	pd     *rdma.PD
	users  int
}

var shared struct {
	mu sync.Mutex
	of map[uintptr]*sharedDevice // by context
}

// shareDevice gives the device of a context, to be given back by release.
func shareDevice(c *ibv.Context) (*sharedDevice, error) {
	at := uintptr(unsafe.Pointer(c))
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s := shared.of[at]; s != nil {
		s.users++
		return s, nil
	}
	d, err := rdma.AdoptDevice(c, nil)
	if err != nil {
		return nil, err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if shared.of == nil {
		shared.of = map[uintptr]*sharedDevice{}
	}
	s := &sharedDevice{c: at, device: d, pd: pd, users: 1}
	shared.of[at] = s
	return s, nil
}

// release gives the device back. The last user cannot while there is something left on it.
func (s *sharedDevice) release() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s.users > 1 {
		s.users--
		return nil
	}
	if err := s.pd.Close(); err != nil {
		return err
	}
	if err := s.device.Close(); err != nil {
		pd, err2 := s.device.AllocPD() // as it was
		if err2 == nil {
			s.pd = pd
		}
		return errors.Join(err, err2)
	}
	s.users = 0
	delete(shared.of, s.c)
	return nil
}

// DeviceList is the devices that connections can be made on, all open. They stay until Close, what was made from them being closed before.
//
// C: rdma_get_devices, rdma_free_devices
//
// Man: rdma_get_devices(3)
type DeviceList struct {
	Devices []*rdma.Device

	once   sync.Mutex
	c      *ibv.Ptr[ibv.Context]
	shares []*sharedDevice
}

// GetDevices opens all devices of the native library, which keeps them open until the process ends, or the device is gone and GetDevices is
// called again: a kernel may wait for that before it lets a software device go. With rdma-core 44 on Soft-RoCE, a process whose device went away
// hung in its next call now and then: librdmacm waited for a lock of its own.
//
// C: rdma_get_devices
//
// Man: rdma_get_devices(3)
func GetDevices() (*DeviceList, error) { return GetDevicesOn(nil) }

// GetDevicesOn opens all devices of a software backend; nil means the native library.
func GetDevicesOn(backend runtime.Backend) (*DeviceList, error) {
	const verb = "rdma_get_devices"
	n := new(int32)
	c, err := librdmacm.From{Backend: backend}.GetDevices(n)
	if err != nil {
		return nil, wrap(verb, "", err)
	}
	l := &DeviceList{c: c}
	for _, context := range unsafe.Slice(c, *n) {
		s, err := shareDevice(context.Deref())
		if err != nil {
			return nil, errors.Join(wrap(verb, "", err), l.Close())
		}
		l.shares, l.Devices = append(l.shares, s), append(l.Devices, s.device)
	}
	return l, nil
}

// Close gives the devices back. Closing again does nothing.
//
// C: rdma_free_devices
//
// Man: rdma_get_devices(3)
func (l *DeviceList) Close() error {
	l.once.Lock()
	defer l.once.Unlock()
	for len(l.shares) > 0 {
		if err := l.shares[0].release(); err != nil {
			return err
		}
		l.shares = l.shares[1:]
	}
	if l.c == nil {
		return nil
	}
	c := l.c
	l.c, l.Devices = nil, nil
	return wrap("rdma_free_devices", "", librdmacm.FreeDevices(c))
}
