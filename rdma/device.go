// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/internal/stats"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/internal/counted"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// Device is an open device: what C calls a context. Every other object comes from it, directly or through its
// protection domains.
//
// # Lifetimes
//
// Any number of goroutines may use an object at once. Close destroys it, waits for calls under way in other goroutines,
// and is idempotent. If other objects need it (a protection domain with memory regions, a completion queue with queue
// pairs), Close fails; the error names them, and errors.Is finds [ErrInUse]. Methods of a closed object fail with
// [ErrClosed]; its C and CEx return nil, its Ptr names nothing, and other getters keep returning their last value. An
// object that is never closed leaks: the garbage collector destroys nothing.
type Device struct {
	object
	c       *ibv.Context
	info    DeviceInfo
	vectors int
	objects registry
	counts  *counted.Device // nil where nothing is published
	events  asyncEvents
	failed  atomic.Pointer[VerbError] // why the device is gone, or nil

	path         atomic.Pointer[Path] // set by UsePath, or nil
	makers       sync.Map             // datapath.Maker values of single queue pairs' paths
	keepsLastWQE atomic.Bool          // the device did not raise IBV_EVENT_QP_LAST_WQE_REACHED when it should have
}

// open opens a device from a list.
func open(d *ibv.Device, info DeviceInfo) (*Device, error) {
	c, err := libibverbs.OpenDevice(d)
	if err != nil {
		object := info.Name
		if !info.IsSoftware() {
			object += " (" + chosen.Name(info.Backend) + ")"
		}
		return nil, explain("ibv_open_device", object, needsLibrary(info.Backend, needsDriver, err),
			verberr.Injected(info.Backend, err))
	}
	return adoptDevice(c, info, libibverbs.CloseDevice)
}

// adoptDevice returns a Device that owns an open context. If it fails, it closes the context.
func adoptDevice(c *ibv.Context, info DeviceInfo, release func(*ibv.Context) error) (*Device, error) {
	d := &Device{c: c, info: info, vectors: int(c.NumCompVectors)}
	d.begin(info.Name, func() error {
		d.counts.Closed(d)
		d.events.stop()
		return release(c)
	})
	if err := d.events.start(d); err != nil {
		release(c)
		return nil, fmt.Errorf("rdma: %s: events of the device cannot be waited for: %w", info.Name, err)
	}
	d.counts = counted.Open(d, info.Name, info.Backend, d.objects.count)
	return d, nil
}

// ImportDevice opens the device that another process has open. cmd is a descriptor of its commands that the other
// process sent (a duplicate of cmd_fd of its context). Objects of that process can then be imported. The Device owns
// the descriptor and closes it. name is used in messages.
//
// C: ibv_import_device
//
// Man: ibv_import_device(3)
func ImportDevice(name string, commands int) (*Device, error) {
	return ImportDeviceOn(nil, name, commands)
}

// ImportDeviceOn is like ImportDevice, for a device of a software backend that this process has open. A nil backend
// selects that of GOVERBS_DEVICE, as ImportDevice does; runtime.Native is rdma-core. After an error the caller still
// owns the descriptor.
func ImportDeviceOn(backend runtime.Backend, name string, commands int) (*Device, error) {
	backend, err := chosen.Of(backend)
	if err != nil {
		return nil, err
	}
	c, err := libibverbs.From{Backend: backend}.ImportDevice(commands)
	if err != nil {
		return nil, wrap("ibv_import_device", name, verberr.Injected(backend, err))
	}
	return adoptDevice(c, DeviceInfo{Name: name, Index: -1, Backend: backend}, libibverbs.CloseDevice)
}

// Name returns the name of the device: "mlx5_0".
func (d *Device) Name() string { return d.info.Name }

// Info returns the device's entry in the list of devices.
func (d *Device) Info() DeviceInfo { return d.info }

// C returns C's context, for calls of generated/libibverbs. It belongs to the Device.
func (d *Device) C() *ibv.Context { return whileOpen(&d.object, d.c) }

// CompVectors returns the number of completion vectors: interrupts that completion queues can be spread over.
func (d *Device) CompVectors() int { return d.vectors }

// Close closes the device. Close everything that came from it first.
//
// C: ibv_close_device
//
// Man: ibv_open_device(3)
func (d *Device) Close() error { return d.end() }

// Err returns an error if the device is gone, because it reported a fatal error or was unplugged, and nil otherwise.
//
// Close the objects of an unplugged device as usual. C fails to destroy them, with EIO, and keeps them, unless
// RDMAV_ALLOW_DISASSOC_DESTROY=1 was set when the program started.
//
// Man: ibv_open_device(3)
func (d *Device) Err() error {
	if e := d.failed.Load(); e != nil {
		return e
	}
	return nil
}

// from returns the device's software backend, for functions that take no object; nil means rdma-core.
func (d *Device) from() libibverbs.From {
	return libibverbs.From{Backend: runtime.BackendOf(uintptr(unsafe.Pointer(d.c)))}
}

// refused returns the device as package refusal describes it.
func (d *Device) refused() refusal.Device {
	return refusal.Device{C: d.c, Software: d.info.IsSoftware(), Vectors: d.vectors,
		Lacks: func(err error) string { return needsLibrary(d.info.Backend, needsVerb, err) }}
}

// registry finds the objects of a device by their addresses in C. C's structures and events name objects by address.
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

// find returns the object at an address, or nil.
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

// count counts the objects by kind, under the kernel's name of the kind if it has one, and adds up memory.
func (r *registry) count(to *stats.Device) {
	r.each(func(o any) {
		to.Objects[strings.ToLower(reflect.TypeOf(o).Elem().Name())]++
		if memory, ok := o.(interface{ size() uint64 }); ok {
			to.MRBytes += memory.size()
		}
	})
}

// lookup returns the object that a structure of C names, nil for 0, or an error.
func lookup[T any](d *Device, verb, object, member string, address uintptr) (*T, error) {
	if address == 0 {
		return nil, nil
	}
	if address == closedAddress {
		return nil, &VerbError{Verb: verb, Object: object, Errno: syscall.EINVAL, Reason: member, Err: ErrClosed}
	}
	o, ok := d.objects.find(address).(*T)
	if !ok {
		return nil, invalid(verb, object, "%s is not an open object of %s", member, d.Name())
	}
	return o, nil
}

// named is lookup for an object that must not be nil, because C dereferences it without a check.
func named[T any](d *Device, verb, object, member string, address uintptr) (*T, error) {
	o, err := lookup[T](d, verb, object, member, address)
	if err == nil && o == nil {
		err = invalid(verb, object, "%s must be set", member)
	}
	return o, err
}

// noAttributes returns the error for a call without attributes, which C would dereference.
func noAttributes(verb, object string) error { return invalid(verb, object, "there are no attributes") }

// isNil returns the error for an object or a batch that is nil.
func isNil(verb, object, what string) error { return invalid(verb, object, "the %s is nil", what) }

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// UsePath makes queues created from now on, completion queues included, use p to reach the device. With nil they use
// the device's own functions again. A Path that is set in a queue's [QueueOptions] takes precedence. A queue pair and
// its completion queues should use the same path.
func (d *Device) UsePath(p Path) {
	if p == nil {
		d.path.Store(nil)
	} else {
		d.path.Store(&p)
	}
}

// Path returns the path of UsePath, or nil.
func (d *Device) Path() Path {
	if p := d.path.Load(); p != nil {
		return *p
	}
	return nil
}

// pathFor sets the device's path in the options of a queue without a path.
func (d *Device) pathFor(o *QueueOptions) {
	if d == nil || o.Path != nil { // the zero value is refused elsewhere
		return
	}
	o.Path = d.Path()
}
