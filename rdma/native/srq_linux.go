// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// sharedQueue is a shared receive queue.
type sharedQueue struct {
	context *context
	record  *srqRecord
	acked   reports
	own     driver.SRQ
	path    driver.SRQPath
	kind    ibv.SRQType
	number  uint32 // XRC: by which requests name it
}

type srqRecord struct {
	ibv.SRQ
	index uint32
}

func (b *Backend) createSRQ(a []uint64) (uint64, runtime.Errno) {
	p := find[domain](b, a[0])
	if p == nil || a[1] == 0 {
		return 0, syscall.EINVAL
	}
	attr := ibv.Ptr[ibv.SRQInitAttr](a[1]).Deref()
	return b.newSRQ(p, attr.SRQContext, &attr.Attr, ibv.SRQT_BASIC, func(s *sharedQueue,
		out *uapi.IBUverbsCreateSRQResp, sent *bool) (driver.SRQ, syscall.Errno) {
		in := uapi.IBUverbsCreateSRQ{UserHandle: addressOf(s.record), PDHandle: p.record.Handle, MaxWR: attr.Attr.MaxWR,
			MaxSGE: attr.Attr.MaxSGE, SRQLimit: attr.Attr.SRQLimit}
		return s.context.own.CreateSRQ(&in, out, command(s.context, uapi.IB_USER_VERBS_CMD_CREATE_SRQ, &in, out, sent))
	})
}

// newSRQ creates a queue by create, and sets attr to its capacities.
func (b *Backend) newSRQ(p *domain, user uintptr, attr *ibv.SRQAttr, kind ibv.SRQType, create func(s *sharedQueue,
	out *uapi.IBUverbsCreateSRQResp, sent *bool) (driver.SRQ, syscall.Errno)) (uint64, runtime.Errno) {
	c := p.context
	record, errno := allocate[srqRecord](b)
	if errno != 0 {
		return 0, errno
	}
	s := &sharedQueue{context: c, record: record, kind: kind}
	var out uapi.IBUverbsCreateSRQResp
	var sent bool
	fail := func() {
		if sent {
			c.destroySRQ(out.SRQHandle)
		}
		if s.own != nil {
			s.own.Free()
		}
		free(b, record)
	}
	if s.own, errno = create(s, &out, &sent); errno != 0 {
		fail()
		return 0, errno
	}
	record.SRQ = ibv.SRQ{Context: c.pointer(), SRQContext: user, PD: ibv.PtrTo(p.record), Handle: out.SRQHandle}
	s.number = out.SRQN
	cap := s.own.Cap(ibv.SRQAttr{MaxWR: out.MaxWR, MaxSGE: out.MaxSGE, SRQLimit: attr.SRQLimit})
	if s.path, errno = s.own.Path(&record.SRQ, cap); errno != 0 {
		fail()
		return 0, errno
	}
	*attr = cap
	record.index = b.srqs.add(s)
	c.uses.Add(1)
	b.enter(addressOf(record), s)
	return addressOf(record), 0
}

// createSRQEx is the operation create_srq_ex, which is called for what ibv_create_srq does not create: queues of XRC.
func (b *Backend) createSRQEx(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	const known = ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ |
		ibv.SRQ_INIT_ATTR_TM
	c, attr := find[context](b, of), ibv.Ptr[ibv.SRQInitAttrEx](address).Deref()
	switch {
	case c == nil || attr == nil:
		return 0, syscall.EINVAL
	case attr.CompMask&^known != 0:
		return 0, syscall.EOPNOTSUPP
	}
	const needs = ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_XRCD | ibv.SRQ_INIT_ATTR_CQ
	x, ok := c.own.(driver.XRC)
	if !ok || attr.CompMask&needs != needs || attr.SRQType != ibv.SRQT_XRC {
		return 0, syscall.EINVAL
	}
	p, xrcd, cq := find[domain](b, uint64(attr.PD)), find[xrcDomain](b, uint64(attr.XRCD)),
		find[completionQueue](b, uint64(attr.CQ))
	if p == nil || xrcd == nil || cq == nil {
		return 0, syscall.EINVAL
	}
	return b.newSRQ(p, attr.SRQContext, &attr.Attr, ibv.SRQT_XRC, func(s *sharedQueue, out *uapi.IBUverbsCreateSRQResp,
		sent *bool) (driver.SRQ, syscall.Errno) {
		in := uapi.IBUverbsCreateXSRQ{UserHandle: addressOf(s.record), SRQType: uapi.IBUverbsSRQType(ibv.SRQT_XRC),
			PDHandle: p.record.Handle, MaxWR: attr.Attr.MaxWR, MaxSGE: attr.Attr.MaxSGE, SRQLimit: attr.Attr.SRQLimit,
			XRCDHandle: xrcd.handle, CQHandle: cq.record.cq().Handle}
		return x.CreateXRC(&in, out, cq.record.cq(), command(c, uapi.IB_USER_VERBS_CMD_CREATE_XSRQ, &in, out, sent))
	})
}

func (c *context) destroySRQ(handle uint32) (uapi.IBUverbsDestroySRQResp, syscall.Errno) {
	return write[uapi.IBUverbsDestroySRQResp](c, uapi.IB_USER_VERBS_CMD_DESTROY_SRQ,
		&uapi.IBUverbsDestroySRQ{SRQHandle: handle})
}

func (b *Backend) destroySRQ(address uint64) syscall.Errno {
	s := find[sharedQueue](b, address)
	if s == nil {
		return syscall.EINVAL
	}
	var out uapi.IBUverbsDestroySRQResp
	if errno := s.own.End(func() (errno syscall.Errno) {
		out, errno = s.context.destroySRQ(s.record.Handle)
		return errno
	}); errno != 0 {
		return errno
	}
	b.settle(address, &s.acked, 0, out.EventsReported)
	b.srqs.remove(s.record.index)
	s.own.Free()
	s.context.uses.Add(-1)
	free(b, s.record)
	return 0
}

func (b *Backend) modifySRQ(a []uint64) syscall.Errno {
	s := find[sharedQueue](b, a[0])
	if s == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	attr := ibv.Ptr[ibv.SRQAttr](a[1]).Deref()
	in := uapi.IBUverbsModifySRQ{SRQHandle: s.record.Handle, AttrMask: uint32(a[2]), MaxWR: attr.MaxWR,
		SRQLimit: attr.SRQLimit}
	var sent bool
	return s.own.Modify(&in, command(s.context, uapi.IB_USER_VERBS_CMD_MODIFY_SRQ, &in, &none{}, &sent))
}

func (b *Backend) querySRQ(a []uint64) syscall.Errno {
	s := find[sharedQueue](b, a[0])
	if s == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	r, errno := write[uapi.IBUverbsQuerySRQResp](s.context, uapi.IB_USER_VERBS_CMD_QUERY_SRQ,
		&uapi.IBUverbsQuerySRQ{SRQHandle: s.record.Handle})
	if errno == 0 {
		*ibv.Ptr[ibv.SRQAttr](a[1]).Deref() = ibv.SRQAttr{MaxWR: r.MaxWR, MaxSGE: r.MaxSGE, SRQLimit: r.SRQLimit}
	}
	return errno
}

func (b *Backend) postSRQRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := b.srqs.get(ibv.Ptr[srqRecord](address).Deref().index)
	if s == nil || addressOf(s.record) != address {
		return uint64(syscall.EINVAL), 0
	}
	return uint64(s.path.PostSRQRecv(&s.record.SRQ, ibv.Ptr[ibv.RecvWR](wr).Deref(), badAt[ibv.RecvWR](bad))), 0
}
