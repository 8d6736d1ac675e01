// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// pd is a protection domain, or a parent domain, which protects as the one it was made of.
type pd struct {
	*context
	resource.Domain // whose keys count, of the one that was made
	record          *ibv.PD
	uses            int // of the domain that was made, by all of its handles
	parent          *pd // the domain of a parent domain
	td              *td
	of              *pd // of an import: the domain that was made
	imports[pd]
}

// made is the domain that a program made, of which p may be an import.
func (p *pd) made() *pd {
	if p.of != nil {
		return p.of
	}
	return p
}

// hold counts so many more objects in the domain. The caller holds Fabric.mu.
func (p *pd) hold(n int) { p.made().uses += n }

func allocPD(of ibv.Ptr[ibv.Context]) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.fabric().Unlock()
	p, errno := c.newPD()
	if errno != 0 {
		return 0, errno
	}
	return mem.AddressOf(p.record), 0
}

func (c *context) newPD() (*pd, runtime.Errno) {
	record, errno := allocate[ibv.PD](c.device)
	if errno != 0 {
		return nil, errno
	}
	c.uses++
	p := &pd{context: c, record: record}
	record.Context, record.Handle = c.address(), c.device.handle()
	enter(record, p)
	return p, 0
}

func deallocPD(of ibv.Ptr[ibv.PD]) runtime.Errno {
	p := locked[pd](of)
	if p == nil {
		return syscall.EINVAL
	}
	defer p.fabric().Unlock()
	return p.dealloc()
}

// dealloc is deallocPD with the fabric's lock.
func (p *pd) dealloc() runtime.Errno {
	of := p.made()
	if errno := mayGo(p.fabric(), mem.AddressOf(p.record), p, func() bool { return of.uses > 0 }); errno != 0 {
		return errno
	}
	if p.parent != nil {
		p.parent.hold(-1)
	}
	if p.td != nil {
		p.td.uses--
	}
	for h := range handlesOf(of, &of.imports) {
		drop(h.context, h.record, "pd", h == p || h.left)
	}
	return 0
}

// protects is the domain whose keys count.
func (p *pd) protects() *resource.Domain {
	if p.parent != nil {
		return &p.parent.made().Domain
	}
	return &p.made().Domain
}

// td is a thread domain: a promise of the program's that this device has no use for.
type td struct {
	*context
	record *ibv.TD
	uses   int
}

func allocTD(c *context, init uint64) (uint64, runtime.Errno) {
	if init == 0 || mem.At[ibv.TDInitAttr](init).CompMask != 0 {
		return 0, syscall.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	record, errno := allocate[ibv.TD](c.device)
	if errno != 0 {
		return 0, errno
	}
	c.uses++
	record.Context = c.address()
	enter(record, &td{context: c, record: record})
	return mem.AddressOf(record), 0
}

func deallocTD(address uint64) runtime.Errno {
	t := locked[td](address)
	if t == nil {
		return syscall.EINVAL
	}
	defer t.fabric().Unlock()
	if errno := mayGo(t.fabric(), address, t, func() bool { return t.uses > 0 }); errno != 0 {
		return errno
	}
	t.context.leave()
	forget(t.record)
	return 0
}

// dmah is a DMA handle: hints about the bus between memory and an adapter, of which this device has none. It checks
// them, and heeds none.
type dmah struct {
	*context
	record *ibv.DMAH
	uses   int // regions
}

// Values of hints.
const (
	maxPH  = 3
	maxCPU = 1<<13 - 1 // the most that Linux counts
)

// allocDMAH is ibv_alloc_dmah.
func allocDMAH(of ibv.Ptr[ibv.Context], init ibv.Ptr[ibv.DMAHInitAttr]) (uint64, runtime.Errno) {
	c := locked[context](of)
	if c == nil {
		return 0, syscall.EINVAL
	}
	defer c.fabric().Unlock()
	if init == 0 {
		return 0, syscall.EINVAL
	}
	attr := init.Deref()
	const known = ibv.DMAH_INIT_ATTR_MASK_CPU_ID | ibv.DMAH_INIT_ATTR_MASK_PH | ibv.DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
	has := func(bit ibv.DMAHInitAttrMask) bool { return attr.CompMask&bit != 0 }
	switch {
	case attr.CompMask&^known != 0:
		return 0, syscall.EOPNOTSUPP
	case has(ibv.DMAH_INIT_ATTR_MASK_PH) && attr.PH > maxPH, has(ibv.DMAH_INIT_ATTR_MASK_CPU_ID) && attr.CPUID > maxCPU,
		has(ibv.DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && attr.TPHMemType > ibv.TPH_MEM_TYPE_PM:
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.DMAH](c.device)
	if errno != 0 {
		return 0, errno
	}
	c.uses++
	record.Context = c.address()
	enter(record, &dmah{context: c, record: record})
	return mem.AddressOf(record), 0
}

// deallocDMAH is ibv_dealloc_dmah.
func deallocDMAH(of ibv.Ptr[ibv.DMAH]) runtime.Errno {
	h := locked[dmah](of)
	if h == nil {
		return syscall.EINVAL
	}
	defer h.fabric().Unlock()
	if errno := mayGo(h.fabric(), of, h, func() bool { return h.uses > 0 }); errno != 0 {
		return errno
	}
	h.context.leave()
	forget(h.record)
	return 0
}

func allocParentDomain(c *context, init uint64) (uint64, runtime.Errno) {
	if init == 0 {
		return 0, syscall.EINVAL
	}
	attr := mem.At[ibv.ParentDomainInitAttr](init)
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	of, with := find[pd](uint64(attr.PD)), find[td](uint64(attr.TD))
	if of == nil || of.parent != nil || of.device != c.device || attr.TD != 0 &&
		(with == nil || with.device != c.device) {
		return 0, syscall.EINVAL
	}
	// The program's functions for memory of queues are not called: queues of this device are not in its memory.
	if attr.CompMask&ibv.PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 && (attr.Alloc == 0 || attr.Free == 0) {
		return 0, syscall.EINVAL
	}
	p, errno := c.newPD()
	if errno != 0 {
		return 0, errno
	}
	p.parent = of
	of.hold(1)
	if with != nil {
		p.td = with
		with.uses++
	}
	return mem.AddressOf(p.record), 0
}

// NewPD makes a protection domain for all identifiers of the device. The caller holds Fabric.mu.
func (c *context) NewPD() (p *pd, errno runtime.Errno) {
	made.Shared(func() { p, errno = c.newPD() })
	return p, errno
}
