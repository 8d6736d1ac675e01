// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"slices"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
)

// context is a device that a program has opened.
type context struct {
	device *device
	record *ibv.VerbsContext
	uses   int // objects
	async  events[asyncEvent]
}

func openDevice(of ibv.Ptr[ibv.Device]) (ibv.Ptr[ibv.Context], runtime.Errno) {
	d := find[device](of)
	if d == nil {
		return 0, errnos.EINVAL
	}
	d.fabric.mu.Lock()
	defer d.fabric.unlock()
	c, errno := d.open()
	if errno != 0 {
		return 0, errno
	}
	return c.address(), 0
}

// open opens the device once more.
func (d *device) open() (*context, runtime.Errno) {
	if d.gone { // it was there when it was listed
		return nil, errnos.ENOENT
	}
	record, errno := allocate[ibv.VerbsContext](d)
	if errno != 0 {
		return nil, errno
	}
	c := &context{device: d, record: record}
	if errno := c.async.Open(); errno != 0 {
		all.space.Free(unsafe.Pointer(record))
		return nil, errno
	}
	all.slots.context(record)
	record.Sz = uint64(unsafe.Sizeof(*record))
	record.Context.ABICompat = ibv.VERBS_ABI_IS_EXTENDED
	record.Context.Device = ibv.PtrTo(d.record)
	record.Context.CmdFD, record.Context.AsyncFD, record.Context.NumCompVectors = -1, c.async.Descriptor(), 1
	d.contexts = append(d.contexts, c)
	// The address of a context is that of the inner structure, but the record is freed as it was allocated.
	enter(&record.Context, c)
	return c, 0
}

// closeDevice is ibv_close_device. It fails while there are objects of the device.
func closeDevice(of ibv.Ptr[ibv.Context]) runtime.Errno {
	c := locked[context](of)
	if c == nil {
		return errnos.EINVAL
	}
	f := c.device.fabric
	defer f.unlock()
	if errno := c.close(); errno != 0 {
		return errno
	}
	return 0
}

// close is closeDevice with the fabric's lock.
func (c *context) close() runtime.Errno {
	if errno := mayGo(c.fabric(), uint64(c.address()), c, func() bool { return c.uses > 0 }); errno != 0 {
		return errno
	}
	c.device.contexts = slices.DeleteFunc(c.device.contexts, func(other *context) bool { return other == c })
	c.async.Close()
	all.mu.Lock()
	delete(all.objects, uint64(c.address()))
	delete(all.made, c)
	all.mu.Unlock()
	all.space.Free(unsafe.Pointer(c.record))
	c.device.release()
	return 0
}

func (c *context) address() ibv.Ptr[ibv.Context] { return ibv.PtrTo(&c.record.Context) }

// isGone says whether the device was taken away since it was opened.
func (c *context) isGone() bool {
	c.fabric().mu.Lock()
	defer c.fabric().mu.Unlock()
	return c.device.gone
}

func (c *context) fabric() *Fabric { return c.device.fabric }

// handle is a number for an object that has no other: no two of a device have the same at once.
func (d *device) handle() uint32 {
	d.handles++
	return d.handles
}

// release frees the record of a device that was taken away, when nobody has it any more.
func (d *device) release() {
	if !d.gone || d.lists > 0 || len(d.contexts) > 0 {
		return
	}
	f := d.fabric
	f.gone = slices.DeleteFunc(f.gone, func(other *device) bool { return other == d })
	f.direct.Detach(d.link)
	forget(d.record)
}
