// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"iter"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// context is a device that a program has opened.
type context struct {
	device *device
	record *ibv.VerbsContext
	uses   int // objects
	async  Events[asyncEvent]
	closed bool // before its objects were destroyed
	file   *fd.Commands
	opened *opened
	kept   atomic.Bool // the connection manager keeps it for programs that may have its address; none holds it
}

// opened is the state that a context shares with the contexts imported through its descriptor: objects of one can be
// imported into the others.
type opened struct{ name string } // of the file

// closedContext takes the place of a context that is closed while it has objects: calls find no context there.
type closedContext struct{ *context }

func openDevice(of ibv.Ptr[ibv.Device]) (ibv.Ptr[ibv.Context], runtime.Errno) {
	d := find[device](of)
	if d == nil {
		return 0, syscall.EINVAL
	}
	d.on.mu.Lock()
	defer d.on.Unlock()
	c, errno := d.open()
	if errno != 0 {
		return 0, errno
	}
	return c.address(), 0
}

// open opens the device once more.
func (d *device) open() (*context, runtime.Errno) {
	if d.gone { // it was there when it was listed
		return nil, syscall.ENOENT
	}
	file, errno := fd.NewCommands()
	if errno != 0 {
		return nil, errno
	}
	name, _ := fd.Name(file.Descriptor())
	c, errno := d.openBy(file, &opened{name})
	if errno != 0 {
		file.Close()
	}
	return c, errno
}

// openBy creates a context that owns its descriptor and closes it when the context ends.
func (d *device) openBy(file *fd.Commands, shared *opened) (*context, runtime.Errno) {
	record, errno := allocate[ibv.VerbsContext](d)
	if errno != 0 {
		return nil, errno
	}
	c := &context{device: d, record: record, file: file, opened: shared}
	if errno := c.async.Open(); errno != 0 {
		all.space.Free(unsafe.Pointer(record))
		return nil, errno
	}
	all.slots.context(record)
	record.Sz = uint64(unsafe.Sizeof(*record))
	record.Context.ABICompat = ibv.VERBS_ABI_IS_EXTENDED
	record.Context.Device = ibv.PtrTo(d.record)
	record.Context.CmdFD, record.Context.AsyncFD = file.Descriptor(), c.async.Descriptor()
	record.Context.NumCompVectors = 1
	d.contexts = append(d.contexts, c)
	// The address of a context is that of the inner structure, but the record is freed as it was allocated.
	enter(&record.Context, c)
	return c, 0
}

// closeDevice is ibv_close_device. As in libibverbs, it also closes a device that still has objects. They stay, can
// still be destroyed, and count as held by the program; the context's memory goes with the last one.
func closeDevice(of ibv.Ptr[ibv.Context]) runtime.Errno {
	c := locked[context](of)
	if c == nil {
		return syscall.EINVAL
	}
	f := c.fabric()
	defer f.Unlock()
	errno := c.close()
	if errno == syscall.EBUSY {
		c.abandon()
		errno = 0
	}
	return errno
}

// close closes a context that has no objects. The caller holds Fabric.mu.
func (c *context) close() runtime.Errno {
	if errno := mayGo(c.fabric(), uint64(c.address()), c, func() bool { return c.uses > 0 }); errno != 0 {
		return errno
	}
	c.async.Close()
	c.file.Close()
	c.end()
	return 0
}

// Keep sets whether only the connection manager holds the context.
func (c *context) Keep(kept bool) { c.kept.Store(kept) }

// abandon closes a context that has objects. The caller holds Fabric.mu.
func (c *context) abandon() {
	c.closed = true
	c.async.Drop(func(asyncEvent) bool { return true })
	c.async.Close()
	c.file.Close()
	replace(uint64(c.address()), &closedContext{c})
}

// leave counts an object less.
func (c *context) leave() {
	if c.uses--; c.closed && c.uses == 0 {
		c.end()
	}
}

// end frees a context that is closed and has no objects.
func (c *context) end() {
	c.device.contexts = slices.DeleteFunc(c.device.contexts, func(other *context) bool { return other == c })
	all.mu.Lock()
	delete(all.made, all.objects[uint64(c.address())])
	delete(all.objects, uint64(c.address()))
	all.mu.Unlock()
	all.space.Free(unsafe.Pointer(c.record))
	c.device.release()
}

// imports are the handles of an object besides the one that it was made with. As in libibverbs, any handle destroys the
// object; the others can then be unimported, and no more. It is under the fabric's lock.
type imports[T any] struct {
	handles []*T
	left    bool // the handle that it was made with was unimported: it goes with the object
}

// remove takes one out.
func (i *imports[T]) remove(h *T) {
	i.handles = slices.DeleteFunc(i.handles, func(other *T) bool { return other == h })
}

// handlesOf are all handles of an object.
func handlesOf[T any](made *T, i *imports[T]) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		if yield(made) {
			slices.Values(i.handles)(yield)
		}
	}
}

// stale is a handle of an object that was destroyed through another one.
type stale struct {
	*context
	kind   string
	forget func()
}

// drop frees a handle of an object that is destroyed, or leaves it to be unimported. The caller holds Fabric.mu.
func drop[C any](c *context, record *C, kind string, free bool) {
	if free {
		c.leave()
		forget(record)
		return
	}
	replace(mem.AddressOf(record), &stale{c, kind, func() { forget(record) }})
}

// unimportStale forgets a handle that is stale, and reports whether it is.
func unimportStale[C any](of ibv.Ptr[C], kind string) bool {
	s := locked[stale](of)
	if s == nil {
		return false
	}
	defer s.fabric().Unlock()
	if s.kind != kind {
		return false
	}
	s.context.leave()
	s.forget()
	return true
}

func (c *context) address() ibv.Ptr[ibv.Context] { return ibv.PtrTo(&c.record.Context) }

// isGone reports whether the device was taken away since it was opened.
func (c *context) isGone() bool {
	c.fabric().mu.Lock()
	defer c.fabric().mu.Unlock()
	return c.device.gone
}

func (c *context) fabric() *Engine { return c.device.on }

// handle is a number for an object that has no other: no two of a device have the same at once.
func (d *device) handle() uint32 {
	d.handles++
	return d.handles
}

// release frees the record of a removed device once it has no users.
func (d *device) release() {
	if !d.gone || d.lists > 0 || len(d.contexts) > 0 {
		return
	}
	d.released()
	forget(d.record)
}

// device is one of a fabric's, with one port.
type device struct {
	Port
	record     *ibv.Device
	index      int
	persistent bool // memory can be registered as persistent
	contexts   []*context
	lists      int                   // that ibv_get_device_list gave, and that it is in
	inodes     map[string]*XRCDomain // XRC domains that files name
	handles    uint32                // last one given
	dmUsed     uint64                // bytes of it that are given out
	has        limits                // objects that there are
	limits     limits
	released   func() // by the last user after it was taken away
}

// Open opens the device once more, for all identifiers. The caller holds Fabric.mu.
func (d *device) Open() (c *context, errno runtime.Errno) {
	made.Shared(func() { c, errno = d.open() })
	return c, errno
}
