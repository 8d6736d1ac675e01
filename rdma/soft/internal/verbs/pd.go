// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// PD is a protection domain or a parent domain, whose keys are those of its protection domain.
type PD struct {
	*Context
	resource.Domain // of the original
	Record          *ibv.PD
	uses            int // of the original, by all of its handles
	parent          *PD // protection domain of a parent domain
	td              *td
	imports[PD]
}

// hold adds n to the number of objects in the domain. The caller holds Core.Mu.
func (p *PD) hold(n int) { p.of.uses += n }

func allocPD(c *Context) (uint64, runtime.Errno) {
	p, errno := c.newPD()
	if errno != 0 {
		return 0, errno
	}
	return mem.AddressOf(p.Record), 0
}

func (c *Context) newPD() (*PD, runtime.Errno) {
	record, errno := allocate[ibv.PD](c.Device)
	if errno != 0 {
		return nil, errno
	}
	c.uses++
	p := &PD{Context: c, Record: record}
	p.of, p.handles = p, []*PD{p}
	record.Context, record.Handle = c.Address(), c.Device.handle()
	Enter(record, p)
	return p, 0
}

// Dealloc implements ibv_dealloc_pd. The caller holds Core.Mu.
func (p *PD) Dealloc() runtime.Errno {
	if errno := mayGo(p, p.Record, func() bool { return p.of.uses > 0 }); errno != 0 {
		return errno
	}
	if p.parent != nil {
		p.parent.hold(-1)
	}
	if p.td != nil {
		p.td.uses--
	}
	dropHandles(p)
	return 0
}

// domain returns the domain that keys must belong to.
func (p *PD) domain() *resource.Domain {
	if p.parent != nil {
		return &p.parent.of.Domain
	}
	return &p.of.Domain
}

// td is a thread domain: a promise of the program, which this device ignores.
type td struct {
	*Context
	record *ibv.TD
	uses   int
}

func allocTD(c *Context, attr *ibv.TDInitAttr) (uint64, runtime.Errno) {
	if attr.CompMask != 0 {
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.TD](c.Device)
	if errno != 0 {
		return 0, errno
	}
	record.Context = c.Address()
	return add(c, record, &td{Context: c, record: record})
}

func deallocTD(t *td) runtime.Errno {
	return destroy(t, t.record, func() bool { return t.uses > 0 }, func() {})
}

// dmah is a DMA handle: hints about the bus between memory and an adapter. This device checks and ignores them.
type dmah struct {
	*Context
	record *ibv.DMAH
	uses   int // regions
}

// Values of hints.
const (
	maxPH  = 3
	maxCPU = 1<<13 - 1 // maximum on Linux
)

// allocDMAH implements ibv_alloc_dmah.
func allocDMAH(c *Context, attr *ibv.DMAHInitAttr) (uint64, runtime.Errno) {
	const known = ibv.DMAH_INIT_ATTR_MASK_CPU_ID | ibv.DMAH_INIT_ATTR_MASK_PH | ibv.DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
	has := func(bit ibv.DMAHInitAttrMask) bool { return attr.CompMask&bit != 0 }
	switch {
	case attr.CompMask&^known != 0:
		return 0, syscall.EOPNOTSUPP
	case has(ibv.DMAH_INIT_ATTR_MASK_PH) && attr.PH > maxPH, has(ibv.DMAH_INIT_ATTR_MASK_CPU_ID) && attr.CPUID > maxCPU,
		has(ibv.DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && attr.TPHMemType > ibv.TPH_MEM_TYPE_PM:
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.DMAH](c.Device)
	if errno != 0 {
		return 0, errno
	}
	record.Context = c.Address()
	return add(c, record, &dmah{Context: c, record: record})
}

// deallocDMAH implements ibv_dealloc_dmah.
func deallocDMAH(h *dmah) runtime.Errno {
	return destroy(h, h.record, func() bool { return h.uses > 0 }, func() {})
}

func allocParentDomain(c *Context, attr *ibv.ParentDomainInitAttr) (uint64, runtime.Errno) {
	of, with := findOn[PD](c, attr.PD), findOn[td](c, attr.TD)
	if of == nil || of.parent != nil || attr.TD != 0 && with == nil {
		return 0, syscall.EINVAL
	}
	// The program's allocators are not called: queues of this device are not in the program's memory.
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
	return mem.AddressOf(p.Record), 0
}

// NewPD allocates a protection domain for all identifiers of the device. The caller holds Core.Mu.
func (c *Context) NewPD() (p *PD, errno runtime.Errno) {
	made.Shared(func() { p, errno = c.newPD() })
	return p, errno
}
