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

// Device is an open device, a context in C. It creates all other objects, directly or through its protection domains.
//
// # Lifetimes
//
// Any number of goroutines may use an object at once. Close destroys it, waits for calls under way in other goroutines,
// and is idempotent. If other objects depend on it (memory regions on a protection domain, queue pairs on a completion
// queue), Close fails; the error names them and matches [ErrInUse]. Methods of a closed object fail with [ErrClosed].
// Its C and CEx return nil, its Ptr returns an invalid address, and other getters keep returning their last value. An
// object that is never closed leaks: the garbage collector does not destroy objects.
type Device struct {
	object
	c       *ibv.Context
	info    DeviceInfo
	vectors int
	objects registry
	counts  *counted.Device // nil where nothing is published
	events  asyncEvents
	failed  atomic.Pointer[VerbError] // why the device is gone, or nil

	path      atomic.Pointer[Path] // set by UsePath, or nil
	makers    sync.Map             // datapath.Maker values of single queue pairs' paths
	noLastWQE atomic.Bool          // the device failed to raise IBV_EVENT_QP_LAST_WQE_REACHED
}

// open opens a device of C's list.
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
		return nil, fmt.Errorf("rdma: %s: cannot wait for events of the device: %w", info.Name, err)
	}
	d.counts = counted.Open(d, info.Name, info.Backend, d.objects.count)
	return d, nil
}

// ImportDevice opens a device that another process has open, so that objects of that process can be imported. commands
// is the command descriptor that the other process sent: a duplicate of cmd_fd of its context. The Device owns the
// descriptor and closes it. name is used in error messages.
//
// C: ibv_import_device
//
// Man: ibv_import_device(3)
func ImportDevice(name string, commands int) (*Device, error) {
	return ImportDeviceOn(nil, name, commands)
}

// ImportDeviceOn is like ImportDevice, with a backend. It can import a device of a software backend of this process. A
// nil backend selects that of GOVERBS_DEVICE, as ImportDevice does; runtime.Native is rdma-core. After an error the
// caller still owns the descriptor.
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

// C returns C's context, for calls to generated/libibverbs. It belongs to the Device.
func (d *Device) C() *ibv.Context { return whileOpen(&d.object, d.c) }

// CompVectors returns the number of completion vectors: the interrupts among which completion queues can be
// distributed.
func (d *Device) CompVectors() int { return d.vectors }

// Close closes the device. Close all objects that it created first.
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

// refused returns the device in the form that package refusal needs to explain errors.
func (d *Device) refused() refusal.Device {
	return refusal.Device{C: d.c, Software: d.info.IsSoftware(), Vectors: d.vectors,
		Lacks: func(err error) string { return needsLibrary(d.info.Backend, needsVerb, err) }}
}

// registry maps addresses in C to the objects of a device, because C's structures and events refer to objects by
// address.
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

// count adds the number of objects of each kind, and the size of their memory, to a device's statistics.
func (r *registry) count(to *stats.Device) {
	r.each(func(o any) {
		to.Objects[strings.ToLower(reflect.TypeOf(o).Elem().Name())]++
		if memory, ok := o.(interface{ size() uint64 }); ok {
			to.MRBytes += memory.size()
		}
	})
}

// lookup returns the object at an address in an attribute, nil for address 0, or an error.
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

// named is lookup for an attribute that must be set, because C dereferences it without a check.
func named[T any](d *Device, verb, object, member string, address uintptr) (*T, error) {
	o, err := lookup[T](d, verb, object, member, address)
	if err == nil && o == nil {
		err = invalid(verb, object, "%s must be set", member)
	}
	return o, err
}

// noAttributes returns the error for a call without attributes, which C would dereference.
func noAttributes(verb, object string) error { return invalid(verb, object, "the attributes are nil") }

// isNil returns the error for an object or a batch that is nil.
func isNil(verb, object, what string) error { return invalid(verb, object, "the %s is nil", what) }

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// UsePath sets the data path of queues that are created from now on, including completion queues. With nil, they use
// the provider's functions again. A Path in a queue's [QueueOptions] takes precedence. A queue pair and its completion
// queues should use the same path.
func (d *Device) UsePath(p Path) {
	if p == nil {
		d.path.Store(nil)
	} else {
		d.path.Store(&p)
	}
}

// Path returns the path that UsePath set, or nil.
func (d *Device) Path() Path {
	if p := d.path.Load(); p != nil {
		return *p
	}
	return nil
}

// pathFor sets the device's path in queue options that have none.
func (d *Device) pathFor(o *QueueOptions) {
	if d == nil || o.Path != nil { // a zero object is rejected elsewhere
		return
	}
	o.Path = d.Path()
}
