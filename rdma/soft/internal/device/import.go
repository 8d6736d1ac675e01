// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
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

// importPD is ibv_import_pd.
func importPD(of ibv.Ptr[ibv.Context], number uint32) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.fabric().Unlock()
	from := original(func(p *pd) bool {
		return p.opened == c.opened && p.of == nil && p.parent == nil && p.record.Handle == number
	})
	if from == nil {
		return 0, syscall.ENOENT
	}
	p, errno := c.newPD()
	if errno != 0 {
		return 0, errno
	}
	p.record.Handle = number
	p.of = from
	from.handles = append(from.handles, p)
	return mem.AddressOf(p.record), 0
}

// unimportPD is ibv_unimport_pd. Objects created in the domain stay.
func unimportPD(of ibv.Ptr[ibv.PD]) runtime.Errno {
	if unimportStale(of, "pd") {
		return 0
	}
	p := locked[pd](of)
	if p == nil {
		return syscall.EINVAL
	}
	defer p.fabric().Unlock()
	if p.of == nil {
		p.left = true
		return 0
	}
	p.of.remove(p)
	p.context.leave()
	forget(p.record)
	return 0
}

// importMR is ibv_import_mr. As on other devices, the returned region has no address.
func importMR(of ibv.Ptr[ibv.PD], number uint32) (uint64, runtime.Errno) {
	p := locked[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
	from := original(func(r *region) bool { return r.opened == p.opened && r.record.Handle == number })
	if from == nil {
		return 0, syscall.ENOENT
	}
	record, errno := allocate[ibv.MR](p.device)
	if errno != 0 {
		return 0, errno
	}
	*record = ibv.MR{Context: p.address(), PD: of, Length: from.Length, Handle: number, LKey: from.Key,
		RKey: from.record.RKey}
	i := &importedMR{context: p.context, record: record, of: from}
	from.handles = append(from.handles, i)
	p.context.uses++
	enter(record, i)
	return mem.AddressOf(record), 0
}

// unimportMR is ibv_unimport_mr.
func unimportMR(of ibv.Ptr[ibv.MR]) runtime.Errno {
	if unimportStale(of, "mr") {
		return 0
	}
	if r := locked[region](of); r != nil {
		r.left = true
		r.fabric().Unlock()
		return 0
	}
	i := locked[importedMR](of)
	if i == nil {
		return syscall.EINVAL
	}
	defer i.fabric().Unlock()
	i.of.remove(i)
	i.context.leave()
	forget(i.record)
	return 0
}

// importDM is ibv_import_dm.
func importDM(of ibv.Ptr[ibv.Context], number uint32) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.fabric().Unlock()
	from := original(func(m *dm) bool { return m.opened == c.opened && m.of == nil && m.record.Handle == number })
	if from == nil {
		return 0, syscall.ENOENT
	}
	record, errno := allocate[ibv.DM](c.device)
	if errno != 0 {
		return 0, errno
	}
	*record = all.slots.dm
	record.Context, record.Handle = c.address(), number
	m := &dm{context: c, record: record, memory: from.memory, length: from.length}
	m.of = from
	from.handles = append(from.handles, m)
	c.uses++
	enter(record, m)
	return mem.AddressOf(record), 0
}

// unimportDM is ibv_unimport_dm.
func unimportDM(of ibv.Ptr[ibv.DM]) runtime.Errno {
	if unimportStale(of, "dm") {
		return 0
	}
	m := locked[dm](of)
	if m == nil {
		return syscall.EINVAL
	}
	defer m.fabric().Unlock()
	if m.of == nil {
		m.left = true
		return 0
	}
	m.of.remove(m)
	m.context.leave()
	forget(m.record)
	return 0
}
