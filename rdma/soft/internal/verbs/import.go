// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

// original returns an object that was created, not imported, in any context opened from the same file. It takes
// host.mu.
func original[T any](is func(*T) bool) *T {
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, object := range all.objects {
		if o, ok := object.(*T); ok && is(o) {
			return o
		}
	}
	return nil
}

// ImportContext is ibv_import_device for the devices of a fabric. The context owns the descriptor and closes it;
// after an error, the caller still owns it. The caller holds Core.Mu.
func ImportContext(devices []*Device, file int32) (ibv.Ptr[ibv.Context], runtime.Errno) {
	name, errno := fd.Name(file)
	if errno != 0 || name == "" {
		return 0, syscall.EINVAL
	}
	var of *Context
	for _, d := range devices {
		for _, c := range d.Contexts {
			switch {
			case c.closed:
			case c.file.Descriptor() == file: // it would be closed twice: a duplicate is needed
				return 0, syscall.EINVAL
			case c.opened.name == name:
				of = c
			}
		}
	}
	if of == nil {
		return 0, fd.WhyNoCommands(file)
	}
	c, errno := of.Device.openBy(fd.TakeCommands(file), of.opened)
	if errno != 0 {
		return 0, errno
	}
	return c.Address(), 0
}

// imports is the part of an object that other contexts of its file can import. An import is an object of the same type.
// As in libibverbs, any handle destroys the object; the others can then only be unimported.
type imports[T any] struct {
	of      *T   // the object that was created: itself, or that of an import
	handles []*T // of the created one: itself and its imports
	left    bool // the created one was unimported: it goes with the object
}

func (i *imports[T]) sharing() *imports[T] { return i }

// importable is the constraint of objects that can be imported, with records of type C.
type importable[T, C any] interface {
	object[T]
	Resource
	sharing() *imports[T]
	handle() (*Context, *C)
}

func (p *PD) handle() (*Context, *ibv.PD)     { return p.Context, p.Record }
func (r *Region) handle() (*Context, *ibv.MR) { return r.Context, r.record }
func (m *dm) handle() (*Context, *ibv.DM)     { return m.Context, m.record }

// stale is a handle of an object that was destroyed through another handle.
type stale struct {
	*Context
	handle Resource
}

// dropHandles ends the handles of an object that is destroyed through one of them. Handles that were not unimported
// become stale.
func dropHandles[T, C any, P importable[T, C]](by P) {
	for _, o := range P(by.sharing().of).sharing().handles {
		c, record := P(o).handle()
		if P(o) == by || P(o).sharing().left {
			c.leave()
			Forget(record)
		} else {
			replace(mem.AddressOf(record), &stale{c, P(o)})
		}
	}
}

// unimport implements ibv_unimport_pd, ibv_unimport_mr and ibv_unimport_dm. Objects created in a domain stay.
func unimport[T, C any, P importable[T, C]](of ibv.Ptr[C]) runtime.Errno {
	h := locked[T, P](of)
	if h != nil {
		defer h.Fabric().Unlock()
		created := P(h.sharing().of).sharing()
		if created == h.sharing() {
			created.left = true
			return 0
		}
		created.handles = slices.DeleteFunc(created.handles, func(other *T) bool { return P(other) == h })
	} else if s := locked[stale](of); s != nil {
		defer s.Fabric().Unlock()
		h, _ = s.handle.(P)
	}
	if h == nil {
		return syscall.EINVAL
	}
	c, record := h.handle()
	c.leave()
	Forget(record)
	return 0
}

// importPD implements ibv_import_pd.
func importPD(c *Context, number uint32) (uint64, runtime.Errno) {
	from := original(func(p *PD) bool {
		return p.opened == c.opened && p.of == p && p.parent == nil && p.Record.Handle == number
	})
	if from == nil {
		return 0, syscall.ENOENT
	}
	p, errno := c.newPD()
	if errno != 0 {
		return 0, errno
	}
	p.Record.Handle = number
	p.of, from.handles = from, append(from.handles, p)
	return mem.AddressOf(p.Record), 0
}

// importMR implements ibv_import_mr. As on other devices, the returned region has no address.
func importMR(p *PD, number uint32) (uint64, runtime.Errno) {
	from := original(func(r *Region) bool { return r.opened == p.opened && r.of == r && r.record.Handle == number })
	if from == nil {
		return 0, syscall.ENOENT
	}
	record, errno := allocate[ibv.MR](p.Device)
	if errno != 0 {
		return 0, errno
	}
	*record = ibv.MR{Context: p.Address(), PD: ibv.PtrTo(p.Record), Length: from.Length, Handle: number, LKey: from.Key,
		RKey: from.record.RKey}
	r := &Region{Context: p.Context, record: record}
	r.of, from.handles = from, append(from.handles, r)
	return add(p.Context, record, r)
}

// importDM implements ibv_import_dm.
func importDM(c *Context, number uint32) (uint64, runtime.Errno) {
	from := original(func(m *dm) bool { return m.opened == c.opened && m.of == m && m.record.Handle == number })
	if from == nil {
		return 0, syscall.ENOENT
	}
	record, errno := allocate[ibv.DM](c.Device)
	if errno != 0 {
		return 0, errno
	}
	*record = all.slots.dm
	record.Context, record.Handle = c.Address(), number
	m := &dm{Context: c, record: record, memory: from.memory, length: from.length}
	m.of, from.handles = from, append(from.handles, m)
	return add(c, record, m)
}
