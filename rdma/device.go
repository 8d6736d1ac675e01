package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// Device is an open device: what C calls a context. Every other object comes from it, directly or through its protection domains.
//
// # Lifetimes
//
// Any number of goroutines may use an object at once. Close destroys it, waiting for calls under way in other goroutines, and is
// idempotent. An object that others need (a protection domain with memory regions, a completion queue with queue pairs) refuses to be
// closed, with an error that names them and that errors.Is finds [ErrInUse] in. Whatever is called on a closed object fails with
// [ErrClosed]; its C and CEx are nil, its Ptr names nothing, and what else it tells without an error is what it told before. Who forgets an object without closing it leaks it: nothing is destroyed behind the user's back.
type Device struct {
	object
	c       *ibv.Context
	info    DeviceInfo
	vectors int
	objects registry
	events  asyncEvents
	failed  atomic.Pointer[VerbError] // the device is gone, and why

	keepsLastWQE atomic.Bool // it did not raise IBV_EVENT_QP_LAST_WQE_REACHED when it should have
}

// open opens a device of a list.
func open(d *ibv.Device, info DeviceInfo) (*Device, error) {
	c, err := libibverbs.OpenDevice(d)
	if err != nil {
		return nil, wrap("ibv_open_device", info.Name, err)
	}
	return adoptDevice(c, info, libibverbs.CloseDevice)
}

// adoptDevice makes an open context a Device, which from now on is its owner, or closes it.
func adoptDevice(c *ibv.Context, info DeviceInfo, release func(*ibv.Context) error) (*Device, error) {
	d := &Device{c: c, info: info, vectors: int(c.NumCompVectors)}
	d.born("device", info.Name, func() error {
		d.events.stop()
		return release(c)
	})
	if err := d.events.start(d); err != nil {
		release(c)
		return nil, fmt.Errorf("rdma: %s: events of the device cannot be waited for: %w", info.Name, err)
	}
	return d, nil
}

// ImportDevice opens the device that another process has open, by a descriptor of its commands which that process sent (cmd_fd of its
// context, duplicated): objects of it can then be imported. The descriptor is the Device's from then on, and closed with it. name is for
// messages.
//
// C: ibv_import_device
//
// Man: ibv_import_device(3)
func ImportDevice(name string, commands int) (*Device, error) {
	c, err := libibverbs.ImportDevice(commands)
	if err != nil {
		return nil, wrap("ibv_import_device", name, err)
	}
	return adoptDevice(c, DeviceInfo{Name: name, Index: -1}, libibverbs.CloseDevice)
}

// Name is that of the device: "mlx5_0".
func (d *Device) Name() string { return d.info.Name }

// Info is what the list of devices told of it.
func (d *Device) Info() DeviceInfo { return d.info }

// C is the context of C, for calls of generated/libibverbs. It belongs to the Device.
func (d *Device) C() *ibv.Context { return whileOpen(&d.object, d.c) }

// CompVectors is the number of completion vectors: interrupts that completion queues can be spread over.
func (d *Device) CompVectors() int { return d.vectors }

// Close closes the device. Everything that came from it has to be closed before.
//
// C: ibv_close_device
//
// Man: ibv_open_device(3)
func (d *Device) Close() error { return d.end() }

// Err says that the device is gone: it reported a fatal error, or was unplugged. nil: it works.
//
// What is left of an unplugged device has to be closed as ever. C fails to, with EIO, and keeps it, unless RDMAV_ALLOW_DISASSOC_DESTROY=1 has been in the
// program's environment from the start.
//
// Man: ibv_open_device(3)
func (d *Device) Err() error {
	if e := d.failed.Load(); e != nil {
		return e
	}
	return nil
}

// deviceOf is the device's software backend, for functions that take no object; nil is the library.
func (d *Device) from() libibverbs.From {
	return libibverbs.From{Backend: runtime.BackendOf(uintptr(unsafe.Pointer(d.c)))}
}

// registry finds the objects of a device by their addresses in C: the structures of C name objects by them, and so do events.
type registry struct {
	mu  sync.RWMutex
	all map[uintptr]any
}

func (r *registry) add(c uintptr, o any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[uintptr]any{}
	}
	r.all[c] = o
}

func (r *registry) remove(c uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, c)
}

// find gives the object at an address, or nil.
func (r *registry) find(c uintptr) any {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.all[c]
}

// each calls f with every object.
func (r *registry) each(f func(o any)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, o := range r.all {
		f(o)
	}
}

// lookup gives the object that a structure of C names, which is nil for 0, or an error.
func lookup[T any](d *Device, verb, object, member string, address uintptr) (*T, error) {
	if address == 0 {
		return nil, nil
	}
	if address == closedAddress {
		return nil, &VerbError{Verb: verb, Object: object, Errno: einval, Reason: member, Err: ErrClosed}
	}
	o, ok := d.objects.find(address).(*T)
	if !ok {
		return nil, invalid(verb, object, "%s is no object of %s that is open", member, d.Name())
	}
	return o, nil
}

// named is lookup of an object that has to be there: C uses it without a look.
func named[T any](d *Device, verb, object, member string, address uintptr) (*T, error) {
	o, err := lookup[T](d, verb, object, member, address)
	if err == nil && o == nil {
		err = invalid(verb, object, "%s has to be named", member)
	}
	return o, err
}

// noAttributes is the error of a call without attributes, which C would read.
func noAttributes(verb, object string) error { return invalid(verb, object, "there are no attributes") }

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
