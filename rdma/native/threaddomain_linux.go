// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// threadDomain is a thread domain. The kernel does not know it.
type threadDomain struct {
	context *context
	record  *ibv.TD
	own     driver.TD
	uses    atomic.Int32 // parent domains
}

// allocTD is the operation alloc_td.
func (b *Backend) allocTD(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c, attr := find[context](b, of), ibv.Ptr[ibv.TDInitAttr](address).Deref()
	if c == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	d, ok := c.own.(driver.ThreadDomains)
	if !ok {
		return 0, syscall.EOPNOTSUPP
	}
	if attr.CompMask != 0 {
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.TD](b)
	if errno != 0 {
		return 0, errno
	}
	own, errno := d.AllocTD()
	if errno != 0 {
		free(b, record)
		return 0, errno
	}
	record.Context = c.pointer()
	c.uses.Add(1)
	b.enter(addressOf(record), &threadDomain{context: c, record: record, own: own})
	return addressOf(record), 0
}

// deallocTD is the operation dealloc_td.
func (b *Backend) deallocTD(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	t := find[threadDomain](b, address)
	if t == nil {
		return uint64(syscall.EINVAL), 0
	}
	if t.uses.Load() > 0 {
		return uint64(syscall.EBUSY), 0
	}
	b.forget(address)
	t.own.Free()
	t.context.uses.Add(-1)
	free(b, t.record)
	return 0, 0
}

// allocParentDomain is the operation alloc_parent_domain, without allocators. To the kernel, the domain is its
// protection domain.
func (b *Backend) allocParentDomain(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c, attr := find[context](b, of), ibv.Ptr[ibv.ParentDomainInitAttr](address).Deref()
	if c == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	if _, ok := c.own.(driver.ThreadDomains); !ok {
		return 0, syscall.EOPNOTSUPP
	}
	in, td := find[domain](b, uint64(attr.PD)), find[threadDomain](b, uint64(attr.TD))
	switch {
	case in == nil || td == nil && attr.TD != 0:
		return 0, syscall.EINVAL
	case attr.CompMask&ibv.PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0:
		return 0, syscall.EOPNOTSUPP
	case attr.CompMask&^ibv.PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0:
		return 0, syscall.EINVAL
	}
	record, errno := allocate[ibv.PD](b)
	if errno != 0 {
		return 0, errno
	}
	record.Context, record.Handle = c.pointer(), in.record.Handle
	c.uses.Add(1)
	in.uses.Add(1)
	if td != nil {
		td.uses.Add(1)
	}
	b.enter(addressOf(record), &domain{context: c, record: record, number: in.number, in: in, td: td})
	return addressOf(record), 0
}

// deallocParentDomain is ibv_dealloc_pd of a parent domain.
func (b *Backend) deallocParentDomain(p *domain) syscall.Errno {
	b.forget(addressOf(p.record))
	p.in.uses.Add(-1)
	if p.td != nil {
		p.td.uses.Add(-1)
	}
	p.context.uses.Add(-1)
	free(b, p.record)
	return 0
}
