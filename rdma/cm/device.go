package cm

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// sharedDevice is a context that librdmacm has opened, with what all IDs on it share.
type sharedDevice struct {
	c      uintptr
	device *rdma.Device
	pd     *rdma.PD

	// under shared's mu
	users   int
	leaving int // of them: they let go of it now, unless something is in their way
}

var shared = sharedDevices{of: map[uintptr]*sharedDevice{}}

type sharedDevices struct {
	mu   sync.Mutex
	left sync.Cond                 // somebody is not leaving any more
	of   map[uintptr]*sharedDevice // by context
}

func init() { shared.left.L = &shared.mu }

// shareDevice gives the device of a context, to be given back by release.
func shareDevice(c *ibv.Context) (*sharedDevice, error) {
	at := uintptr(unsafe.Pointer(c))
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for s := shared.of[at]; s != nil; s = shared.of[at] {
		if s.leaving < s.users {
			s.users++
			return s, nil
		}
		shared.left.Wait() // its last user leaves
	}
	d, err := rdma.AdoptDevice(c, nil)
	if err != nil {
		return nil, err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	s := &sharedDevice{c: at, device: d, pd: pd, users: 1}
	shared.of[at] = s
	return s, nil
}

// release gives the device back after close, which gets what it has to close too, for the last user: all or, with an error, nothing. s may be nil.
func (s *sharedDevice) release(close func(last ...rdma.Object) error) error {
	if s == nil {
		return close()
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for s.leaving > 0 && s.users-s.leaving == 1 { // is it the last one? Those who leave may fail to
		shared.left.Wait()
	}
	var last []rdma.Object
	if s.users == 1 {
		last = []rdma.Object{s.pd, s.device}
	}
	s.leaving++
	shared.mu.Unlock() // it may take long
	err := close(last...)
	shared.mu.Lock()
	if s.leaving--; err == nil {
		s.users--
	}
	if s.users == 0 {
		delete(shared.of, s.c)
	}
	shared.left.Broadcast()
	return err
}

// needed is why objects, and what goes with the last users of devices, which may be nil, cannot be closed; or nil.
func needed(all []rdma.Object, devices ...*sharedDevice) error {
	shared.mu.Lock() // until it is known, nobody else comes to use one
	defer shared.mu.Unlock()
	for _, s := range devices {
		if s != nil && s.users == 1 {
			all = append(all, s.pd, s.device)
		}
	}
	return rdma.Needed(all...)
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
// called again: a kernel may wait for that before it lets a software device go.
//
// Where one of several devices goes away, librdmacm before rdma-core 52 now and then takes the others for gone as well, when it looks for devices
// again: in GetDevices, or as an ID comes to be on a device that is new. GetDevices does not list them then; and once none is left, whatever makes an
// event channel or an ID, GetDevices and GetAddrInfo never return. It compares the addresses of what libibverbs keeps of devices by the low 32
// bits of their difference, and those that different threads have found may be further apart. The cure is in 44.6, 50.1 and 51.1, too, not in the 44.0
// of Debian 12. With such a release, a program that is to survive its devices has MALLOC_ARENA_MAX=1 in its environment from the start:
// then they are near each other.
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
		return nil, verberr.Wrap(verb, "", err)
	}
	l := &DeviceList{c: c}
	for _, context := range unsafe.Slice(c, *n) {
		s, err := shareDevice(context.Deref())
		if err != nil {
			return nil, errors.Join(verberr.Wrap(verb, "", err), l.Close())
		}
		l.shares, l.Devices = append(l.shares, s), append(l.Devices, s.device)
	}
	return l, nil
}

// Close gives the devices back, or none of them while others need one: rdma.ErrInUse. Closing again does nothing.
//
// C: rdma_free_devices
//
// Man: rdma_get_devices(3)
func (l *DeviceList) Close() error {
	l.once.Lock()
	defer l.once.Unlock()
	if err := needed(nil, l.shares...); err != nil {
		return err
	}
	for len(l.shares) > 0 {
		if err := l.shares[0].release(func(last ...rdma.Object) error { return rdma.CloseAll(nil, last...) }); err != nil {
			return err
		}
		l.shares = l.shares[1:]
	}
	if l.c == nil {
		return nil
	}
	c := l.c
	l.c, l.Devices = nil, nil
	return verberr.Wrap("rdma_free_devices", "", librdmacm.FreeDevices(c))
}
