// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// sharedDevice is a context that librdmacm has opened, with the objects that all IDs on it share.
type sharedDevice struct {
	c      uintptr
	device *rdma.Device
	pd     *rdma.PD

	messages sync.Map // cache of maxMessage: port → uint32

	// guarded by shared.mu
	users   int
	leaving int // users in release
}

var shared = sharedDevices{of: map[uintptr]*sharedDevice{}}

type sharedDevices struct {
	mu   sync.Mutex
	left sync.Cond                 // signals that a release has finished
	of   map[uintptr]*sharedDevice // by context
}

func init() { shared.left.L = &shared.mu }

// shareDevice returns the shared device of a context, with one more user. The caller must call its release.
func shareDevice(c *ibv.Context) (*sharedDevice, error) {
	at := uintptr(unsafe.Pointer(c))
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for s := shared.of[at]; s != nil; s = shared.of[at] {
		if s.leaving < s.users {
			s.users++
			return s, nil
		}
		shared.left.Wait() // its last user is releasing it
	}
	s := &sharedDevice{c: at, users: 1}
	var err error
	if made.Shared(func() { err = s.create(c) }); err != nil {
		return nil, err
	}
	shared.of[at] = s
	return s, nil
}

// create creates the shared objects.
func (s *sharedDevice) create(c *ibv.Context) (err error) {
	if s.device, err = rdma.AdoptDevice(c, nil); err != nil {
		return err
	}
	if s.pd, err = s.device.AllocPD(); err != nil {
		return errors.Join(err, s.device.Close())
	}
	return nil
}

// release removes a user after close has succeeded. For the last user, close receives the shared objects, too; it must
// close everything, or nothing and return an error. s may be nil.
func (s *sharedDevice) release(close func(last ...rdma.Object) error) error {
	if s == nil {
		return close()
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for s.leaving > 0 && s.users-s.leaving == 1 { // a concurrent release may fail, so this may not be the last user
		shared.left.Wait()
	}
	var last []rdma.Object
	if s.users == 1 {
		last = s.last()
	}
	s.leaving++
	shared.mu.Unlock() // close may be slow
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

// maxMessage returns the maximum message size of a port between connected queue pairs, or 0 if unknown. It caches the
// size, which never changes, because a query may be slow: the kernel collects all attributes of a port, for which
// Soft-RoCE waits while any interface of the host is being changed.
func (s *sharedDevice) maxMessage(port uint8) uint32 {
	if limit, ok := s.messages.Load(port); ok {
		return limit.(uint32)
	}
	attr, err := s.device.Port(port)
	if err != nil {
		return 0
	}
	s.messages.Store(port, attr.MaxMsgSz)
	return attr.MaxMsgSz
}

// last returns the objects that the last user closes.
func (s *sharedDevice) last() []rdma.Object { return []rdma.Object{s.pd, s.device} }

// needed returns an error if other objects still need those in all. It includes the shared objects of devices with one
// user. devices may contain nil.
func needed(all []rdma.Object, devices ...*sharedDevice) error {
	shared.mu.Lock() // prevents new users
	defer shared.mu.Unlock()
	for _, s := range devices {
		if s != nil && s.users == 1 {
			all = append(all, s.last()...)
		}
	}
	return rdma.Needed(all...)
}

// DeviceList holds the devices that connections can use. They stay open until Close. Close their objects before it.
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

// GetDevices opens all devices of the selected library: see "Which library" in the package's documentation. librdmacm
// keeps them open until the process ends, or until a device is removed and GetDevices is called again. The kernel may
// wait for that before it removes a software device.
//
// librdmacm before rdma-core 52 has a bug: after one of several devices is removed, it may treat the others as removed
// when it looks for devices again, in GetDevices or when an ID is bound to a new device. GetDevices then omits them. If
// none is left, GetDevices, GetAddrInfo, and every call that creates an event channel or an ID never return. The
// library compares addresses of libibverbs' device records by the low 32 bits of their difference, and records created
// by different threads may be further apart. 44.6, 50.1 and 51.1 also have the fix; the 44.0 of Debian 12 does not.
// With an affected release, start a program that must survive the removal of devices with MALLOC_ARENA_MAX=1, which
// keeps the records close together.
//
// C: rdma_get_devices
//
// Man: rdma_get_devices(3)
func GetDevices() (*DeviceList, error) {
	return GetDevicesOn(nil)
}

// GetDevicesOn opens all devices of a software backend. A nil backend selects by GOVERBS_DEVICE, like GetDevices;
// runtime.Native selects rdma-core.
func GetDevicesOn(backend runtime.Backend) (*DeviceList, error) {
	const verb = "rdma_get_devices"
	backend, err := chosen.Of(backend)
	if err != nil {
		return nil, err
	}
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

// Close closes all devices. If other objects need one of them, it closes none and returns rdma.ErrInUse. A second Close
// does nothing.
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
		if err := l.shares[0].release(func(last ...rdma.Object) error {
			return rdma.CloseAll(nil,
				last...)
		}); err != nil {
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
