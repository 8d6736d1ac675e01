// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
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

// importPD implements ibv_import_pd.
func importPD(c *Context, number uint32) (uint64, runtime.Errno) {
	from := original(func(p *PD) bool {
		return p.opened == c.opened && p.of == nil && p.parent == nil && p.Record.Handle == number
	})
	if from == nil {
		return 0, syscall.ENOENT
	}
	p, errno := c.newPD()
	if errno != 0 {
		return 0, errno
	}
	p.Record.Handle = number
	p.of = from
	from.handles = append(from.handles, p)
	return mem.AddressOf(p.Record), 0
}

// unimportPD implements ibv_unimport_pd. Objects created in the domain stay.
func unimportPD(of ibv.Ptr[ibv.PD]) runtime.Errno {
	if unimportStale(of, "pd") {
		return 0
	}
	p := locked[PD](of)
	if p == nil {
		return syscall.EINVAL
	}
	defer p.Fabric().Unlock()
	if p.of == nil {
		p.left = true
		return 0
	}
	p.of.remove(p)
	p.Context.leave()
	Forget(p.Record)
	return 0
}

// importMR implements ibv_import_mr. As on other devices, the returned region has no address.
func importMR(p *PD, number uint32) (uint64, runtime.Errno) {
	from := original(func(r *Region) bool { return r.opened == p.opened && r.record.Handle == number })
	if from == nil {
		return 0, syscall.ENOENT
	}
	record, errno := allocate[ibv.MR](p.Device)
	if errno != 0 {
		return 0, errno
	}
	*record = ibv.MR{Context: p.Address(), PD: ibv.PtrTo(p.Record), Length: from.Length, Handle: number, LKey: from.Key,
		RKey: from.record.RKey}
	i := &importedMR{Context: p.Context, record: record, of: from}
	from.handles = append(from.handles, i)
	return add(p.Context, record, i)
}

// unimportMR implements ibv_unimport_mr.
func unimportMR(of ibv.Ptr[ibv.MR]) runtime.Errno {
	if unimportStale(of, "mr") {
		return 0
	}
	if r := locked[Region](of); r != nil {
		r.left = true
		r.Fabric().Unlock()
		return 0
	}
	i := locked[importedMR](of)
	if i == nil {
		return syscall.EINVAL
	}
	defer i.Fabric().Unlock()
	i.of.remove(i)
	i.Context.leave()
	Forget(i.record)
	return 0
}

// importDM implements ibv_import_dm.
func importDM(c *Context, number uint32) (uint64, runtime.Errno) {
	from := original(func(m *dm) bool { return m.opened == c.opened && m.of == nil && m.record.Handle == number })
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
	m.of = from
	from.handles = append(from.handles, m)
	return add(c, record, m)
}

// unimportDM implements ibv_unimport_dm.
func unimportDM(of ibv.Ptr[ibv.DM]) runtime.Errno {
	if unimportStale(of, "dm") {
		return 0
	}
	m := locked[dm](of)
	if m == nil {
		return syscall.EINVAL
	}
	defer m.Fabric().Unlock()
	if m.of == nil {
		m.left = true
		return 0
	}
	m.of.remove(m)
	m.Context.leave()
	Forget(m.record)
	return 0
}
