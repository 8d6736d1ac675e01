// SPDX-License-Identifier: BSD-2-Clause

// Package verbs implements libibverbs for software devices: its functions and slots, which find objects by the
// addresses that programs hold. An object embeds the engine's part of it. Methods require the fabric's lock, Core.Mu,
// unless a comment states otherwise.
package verbs

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// host owns the objects of all fabrics, because a process has room for few Spaces but any number of fabrics.
type host struct {
	space *runtime.Space
	slots slots

	mu      sync.RWMutex       // guards the fields below; the tables are read without it
	objects map[uint64]any     // Go state of every object, by the address of its C record
	made    map[any]made.Place // creation of the objects of traced fabrics
	qps     table[QP]          // objects of the data path, found without a lock
	cqs     table[cq]
	srqs    table[SRQ]
}

var TheHost = sync.OnceValues(func() (*host, error) {
	h := &host{objects: map[uint64]any{}, made: map[any]made.Place{}}
	var err error
	if h.space, err = runtime.NewSpace(h); err != nil {
		return nil, err
	}
	all = h
	return h, h.fillSlots()
})

// all is the host, once there is a fabric.
var all *host

// Objects returns the number of objects of all fabrics. It is for tests.
func Objects() int {
	all.mu.RLock()
	defer all.mu.RUnlock()
	return len(all.objects)
}

// Function returns a function of a library that takes an object.
func (h *host) Function(library, name string) runtime.Func { return Function(library, name) }

// allocate returns zeroed memory for a T of the device.
func allocate[T any](d *Device) (*T, runtime.Errno) {
	if d.Gone {
		return nil, syscall.EIO
	}
	if d.full((*T)(nil)) {
		return nil, syscall.ENOMEM
	}
	return AllocateOf[T](d.On)
}

// AllocateOf is allocate for objects without a device.
func AllocateOf[T any](f *engine.Engine) (*T, runtime.Errno) {
	if !f.Faulty.Allocates() {
		f.Failed.Store(true)
		return nil, syscall.ENOMEM
	}
	var v T
	p, err := all.space.Alloc(int(unsafe.Sizeof(v)))
	if err != nil {
		return nil, syscall.ENOMEM
	}
	return (*T)(p), 0
}

// AllocateList returns zeroed memory for n values of T that are not objects.
func AllocateList[T any](n int) ([]T, runtime.Errno) {
	var v T
	p, err := all.space.Alloc(n * int(unsafe.Sizeof(v)))
	if err != nil {
		return nil, syscall.ENOMEM
	}
	return unsafe.Slice((*T)(p), n), 0
}

// Free frees memory that no object uses.
func Free[T any](v *T) { all.space.Free(unsafe.Pointer(v)) }

// Enter registers an object by the address of its record. It takes host.mu.
func Enter[C any](record *C, object any) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.objects[mem.AddressOf(record)] = object
	count(record, object, 1)
}

// add registers an object of a context, and returns the address of its record.
func add[C any](c *Context, record *C, object any) (uint64, runtime.Errno) {
	c.uses++
	Enter(record, object)
	return mem.AddressOf(record), 0
}

// Forget unregisters an object and frees its record. It takes host.mu.
func Forget[C any](record *C) {
	all.mu.Lock()
	count(record, all.objects[mem.AddressOf(record)], -1)
	delete(all.objects, mem.AddressOf(record))
	all.mu.Unlock()
	all.space.Free(unsafe.Pointer(record))
}

// replace registers another object at the address of an existing one. It takes host.mu.
func replace(address uint64, by any) {
	all.mu.Lock()
	defer all.mu.Unlock()
	object := all.objects[address]
	all.objects[address] = by
	if place, ok := all.made[object]; ok {
		delete(all.made, object)
		all.made[by] = place
	}
}

// Find returns the object of type T at an address, or nil. It takes host.mu.
func Find[T any, A abi.Address](address A) *T {
	all.mu.RLock()
	defer all.mu.RUnlock()
	object, _ := all.objects[uint64(address)].(*T)
	return object
}

// findOn is Find for objects of the context's device.
func findOn[T any, P interface {
	*T
	owned() *Device
}, A abi.Address](c *Context, address A) P {
	if o := P(Find[T](address)); o != nil && o.owned() == c.Device {
		return o
	}
	return nil
}

// Still reports whether an object still exists. The caller holds the lock that destroying it takes.
func Still[T any, A abi.Address](address A, object *T) bool { return Find[T](address) == object }

// object is the constraint of objects of a fabric.
type object[T any] interface {
	*T
	Fabric() *engine.Engine
}

// locked returns the object at an address with Core.Mu held, or nil without it. While it waits for the lock, another
// goroutine may destroy the object.
func locked[T any, P object[T], A abi.Address](address A) P {
	o := P(Find[T](address))
	if o == nil {
		return nil
	}
	o.Fabric().Mu.Lock()
	if !Still[T](address, o) {
		o.Fabric().Unlock()
		return nil
	}
	return o
}

// Adapters for functions of an object. They return EINVAL if there is no object at the address in the first register.
// held and creates call the function with Core.Mu held.

func held[T any, P object[T]](f func(P, abi.Args) runtime.Errno) func(abi.Args) runtime.Errno {
	return func(a abi.Args) runtime.Errno {
		return LockedDo(a[0], func(o P) runtime.Errno { return f(o, a) })
	}
}

func creates[T any, P object[T]](f func(P, abi.Args) (uint64, runtime.Errno)) runtime.Func {
	return func(a []uint64) (result uint64, errno runtime.Errno) {
		errno = held(func(o P, a abi.Args) (errno runtime.Errno) {
			result, errno = f(o, a)
			return errno
		})(a)
		return result, errno
	}
}

func found[T any](f func(*T, abi.Args) runtime.Errno) func(abi.Args) runtime.Errno {
	return abi.Of(Find[T, uint64], f)
}

func makes[T any](f func(*T, abi.Args) (uint64, runtime.Errno)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		o := Find[T](a[0])
		if o == nil {
			return 0, syscall.EINVAL
		}
		return f(o, a)
	}
}

// LockedDo calls a function of the object at an address, with Core.Mu held. It returns EINVAL if there is no such
// object.
func LockedDo[T any, P object[T], A abi.Address](address A, f func(P) runtime.Errno) runtime.Errno {
	o := locked[T, P](address)
	if o == nil {
		return syscall.EINVAL
	}
	defer o.Fabric().Unlock()
	return f(o)
}

// destroy destroys an object of a context, unless mayGo forbids it. The function end releases the objects that it uses.
func destroy[T, C any, P interface {
	object[T]
	leave()
}](o P, record *C, busy func() bool, end func(), events ...*resource.Reports) runtime.Errno {
	if errno := mayGo(o, record, busy, events...); errno != 0 {
		return errno
	}
	end()
	o.leave()
	Forget(record)
	return 0
}

// mayGo prepares the destruction of an object. It returns EBUSY if something uses the object. It waits until the
// program has acknowledged all events of the object that it got, without the fabric's lock: if another goroutine
// destroys the object in the meantime, it returns EINVAL.
func mayGo[T, C any, P object[T]](o P, record *C, busy func() bool, events ...*resource.Reports) runtime.Errno {
	f := o.Fabric()
	f.Work()
	for Still[T](mem.AddressOf(record), o) {
		switch {
		case busy():
			return syscall.EBUSY
		case !slices.ContainsFunc(events, func(r *resource.Reports) bool { return !r.Settled() }):
			return 0
		}
		f.Acked.Wait()
	}
	return syscall.EINVAL
}

// never is the busy function of objects that nothing uses.
func never() bool { return false }

// table assigns numbers to objects. It is read without a lock and written under host.mu.
type table[T any] struct {
	entries atomic.Pointer[[]atomic.Pointer[T]]
	free    []uint32
}

// get returns the object with a number, or nil.
func (t *table[T]) get(i uint32) *T {
	if entries := t.entries.Load(); entries != nil && i < uint32(len(*entries)) {
		return (*entries)[i].Load()
	}
	return nil
}

// add assigns a number to an object. It takes host.mu.
func (t *table[T]) add(v *T) uint32 {
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(t.free) == 0 {
		var old []atomic.Pointer[T]
		if entries := t.entries.Load(); entries != nil {
			old = *entries
		}
		grown := make([]atomic.Pointer[T], max(2*len(old), 64))
		for i := range old {
			grown[i].Store(old[i].Load())
		}
		for i := len(grown) - 1; i >= len(old); i-- {
			t.free = append(t.free, uint32(i))
		}
		t.entries.Store(&grown)
	}
	i := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	(*t.entries.Load())[i].Store(v)
	return i
}

// remove frees a number. It takes host.mu.
func (t *table[T]) remove(i uint32) {
	all.mu.Lock()
	defer all.mu.Unlock()
	(*t.entries.Load())[i].Store(nil)
	t.free = append(t.free, i)
}
