// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// Context is a device that a program has opened.
type Context struct {
	Device *Device
	record *ibv.VerbsContext
	uses   int // objects
	Async  resource.Events[AsyncEvent]
	closed bool // closed before its objects were destroyed
	file   *fd.Commands
	opened *opened
	kept   atomic.Bool // kept by the connection manager for programs that may have its address
}

// opened is the state that a context shares with contexts imported through its descriptor. Objects of one can be
// imported into the others.
type opened struct{ name string } // of the file

// closedContext replaces a context that is closed while it has objects, so that calls find no context.
type closedContext struct{ *Context }

func OpenDevice(of ibv.Ptr[ibv.Device]) (ibv.Ptr[ibv.Context], runtime.Errno) {
	d := Find[Device](of)
	if d == nil {
		return 0, syscall.EINVAL
	}
	d.On.Mu.Lock()
	defer d.On.Unlock()
	c, errno := d.open()
	if errno != 0 {
		return 0, errno
	}
	return c.Address(), 0
}

// open opens the device once more.
func (d *Device) open() (*Context, runtime.Errno) {
	if d.Gone { // removed since it was listed
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
func (d *Device) openBy(file *fd.Commands, shared *opened) (*Context, runtime.Errno) {
	record, errno := allocate[ibv.VerbsContext](d)
	if errno != 0 {
		return nil, errno
	}
	c := &Context{Device: d, record: record, file: file, opened: shared}
	if errno := c.Async.Open(); errno != 0 {
		all.space.Free(unsafe.Pointer(record))
		return nil, errno
	}
	all.slots.context(record)
	record.Sz = uint64(unsafe.Sizeof(*record))
	record.Context.ABICompat = ibv.VERBS_ABI_IS_EXTENDED
	record.Context.Device = ibv.PtrTo(d.Record)
	record.Context.CmdFD, record.Context.AsyncFD = file.Descriptor(), c.Async.Descriptor()
	record.Context.NumCompVectors = 1
	d.Contexts = append(d.Contexts, c)
	// The address of a context is that of the inner structure, but the record is freed as it was allocated.
	Enter(&record.Context, c)
	return c, 0
}

// closeDevice implements ibv_close_device. As in libibverbs, it also closes a device that still has objects. They stay,
// can still be destroyed, and count as held by the program; the context's memory goes with the last one.
func closeDevice(c *Context) runtime.Errno {
	errno := c.Close()
	if errno == syscall.EBUSY {
		c.abandon()
		errno = 0
	}
	return errno
}

// Close closes a context that has no objects. The caller holds Core.Mu.
func (c *Context) Close() runtime.Errno {
	if errno := mayGo(c, &c.record.Context, func() bool { return c.uses > 0 }); errno != 0 {
		return errno
	}
	c.Async.Close()
	c.file.Close()
	c.end()
	return 0
}

// Keep sets whether only the connection manager holds the context.
func (c *Context) Keep(kept bool) { c.kept.Store(kept) }

// abandon closes a context that has objects. The caller holds Core.Mu.
func (c *Context) abandon() {
	c.closed = true
	c.Async.Drop(func(AsyncEvent) bool { return true })
	c.Async.Close()
	c.file.Close()
	replace(uint64(c.Address()), &closedContext{c})
}

// leave decrements the number of objects.
func (c *Context) leave() {
	if c.uses--; c.closed && c.uses == 0 {
		c.end()
	}
}

// end frees a closed context without objects.
func (c *Context) end() {
	c.Device.Contexts = slices.DeleteFunc(c.Device.Contexts, func(other *Context) bool { return other == c })
	all.mu.Lock()
	delete(all.made, all.objects[uint64(c.Address())])
	delete(all.objects, uint64(c.Address()))
	all.mu.Unlock()
	all.space.Free(unsafe.Pointer(c.record))
	c.Device.Release()
}

func (c *Context) Address() ibv.Ptr[ibv.Context] { return ibv.PtrTo(&c.record.Context) }

func (c *Context) Fabric() *engine.Engine { return c.Device.On }

// handle returns a handle number for an object without another number, unique in the device.
func (d *Device) handle() uint32 {
	d.handles++
	return d.handles
}

// Release frees the record of a removed device once it has no users.
func (d *Device) Release() {
	if !d.Gone || d.Lists > 0 || len(d.Contexts) > 0 {
		return
	}
	d.Released()
	Forget(d.Record)
}

// Open opens the device once more, for all identifiers. The caller holds Core.Mu.
func (d *Device) Open() (c *Context, errno runtime.Errno) {
	made.Shared(func() { c, errno = d.open() })
	return c, errno
}
