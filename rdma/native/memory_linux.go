// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// domain is a protection domain.
type domain struct {
	context *context
	record  *ibv.PD
	number  uint32        // of the driver
	uses    atomic.Int32  // parent domains in it; of a parent domain, queue pairs
	in      *domain       // of a parent domain; nil for others
	td      *threadDomain // of a parent domain, or nil
}

func (b *Backend) allocPD(a []uint64) (uint64, runtime.Errno) {
	c := find[context](b, a[0])
	if c == nil {
		return 0, syscall.EINVAL
	}
	var out uapi.IBUverbsAllocPDResp
	var sent bool
	number, errno := c.own.AllocPD(command(c, uapi.IB_USER_VERBS_CMD_ALLOC_PD, &uapi.IBUverbsAllocPD{}, &out, &sent))
	if errno != 0 {
		if sent {
			c.deallocPD(out.PDHandle)
		}
		return 0, errno
	}
	record, errno := allocate[ibv.PD](b)
	if errno != 0 {
		c.deallocPD(out.PDHandle)
		return 0, errno
	}
	record.Context, record.Handle = c.pointer(), out.PDHandle
	c.uses.Add(1)
	b.enter(addressOf(record), &domain{context: c, record: record, number: number})
	return addressOf(record), 0
}

func (c *context) deallocPD(handle uint32) syscall.Errno {
	_, errno := write[none](c, uapi.IB_USER_VERBS_CMD_DEALLOC_PD, &uapi.IBUverbsDeallocPD{PDHandle: handle})
	return errno
}

func (b *Backend) deallocPD(address uint64) syscall.Errno {
	p := find[domain](b, address)
	if p == nil {
		return syscall.EINVAL
	}
	if p.uses.Load() > 0 {
		return syscall.EBUSY
	}
	if p.in != nil {
		return b.deallocParentDomain(p)
	}
	if errno := p.context.deallocPD(p.record.Handle); errno != 0 {
		return errno
	}
	b.forget(address)
	p.context.uses.Add(-1)
	free(b, p.record)
	return 0
}

// region is a memory region.
type region struct {
	domain *domain
	record *ibv.MR
}

func (b *Backend) regMRIOVA(a []uint64) (uint64, runtime.Errno) {
	return b.regMR(a[0], a[1], a[2], a[3], ibv.AccessFlags(a[4]))
}

func (b *Backend) regMR(pd, address, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	p := find[domain](b, pd)
	if p == nil {
		return 0, syscall.EINVAL
	}
	c := p.context
	b.registered.Store(true)
	in := uapi.IBUverbsRegMR{Start: address, Length: length, HCAVA: iova, PDHandle: p.record.Handle,
		AccessFlags: uapi.IBUverbsAccessFlags(access)}
	var out uapi.IBUverbsRegMRResp
	var sent bool
	if errno := c.own.RegMR(&in, command(c, uapi.IB_USER_VERBS_CMD_REG_MR, &in, &out, &sent)); errno != 0 {
		if sent {
			c.deregMR(out.MRHandle)
		}
		return 0, errno
	}
	return b.newMR(p, ibv.MR{Addr: uintptr(address), Length: length, Handle: out.MRHandle, LKey: out.LKey,
		RKey: out.RKey})
}

// newMR returns the record of a region that the kernel has created.
func (b *Backend) newMR(p *domain, mr ibv.MR) (uint64, runtime.Errno) {
	c := p.context
	record, errno := allocate[ibv.MR](b)
	if errno != 0 {
		c.deregMR(mr.Handle)
		return 0, errno
	}
	mr.Context, mr.PD = c.pointer(), ibv.PtrTo(p.record)
	*record = mr
	c.uses.Add(1)
	b.enter(addressOf(record), &region{domain: p, record: record})
	return addressOf(record), 0
}

// regDMABuf is ibv_reg_dmabuf_mr.
func (b *Backend) regDMABuf(a []uint64) (uint64, runtime.Errno) {
	p := find[domain](b, a[0])
	if p == nil {
		return 0, syscall.EINVAL
	}
	offset, length, iova, fd, access := a[1], a[2], a[3], uint32(a[4]), uint32(a[5])
	r, errno := p.context.Request(uint16(uapi.UVERBS_OBJECT_MR), uint16(uapi.UVERBS_METHOD_REG_DMABUF_MR))
	if errno != 0 {
		return 0, errno
	}
	defer p.context.Put(r)
	handle := r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE), 0, 0)
	lkey := r.Output(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY), 4)
	rkey := r.Output(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY), 4)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE), 0, uint64(p.record.Handle))
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET), 8, offset)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH), 8, length)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_IOVA), 8, iova)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_FD), 4, uint64(fd))
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS), 4, uint64(access))
	if errno := p.context.Send(&r); errno != 0 {
		if errno == syscall.EPROTONOSUPPORT { // the kernel has no such method for the device
			errno = syscall.EOPNOTSUPP
		}
		return 0, errno
	}
	e := binary.NativeEndian
	return b.newMR(p, ibv.MR{Addr: uintptr(offset), Length: length, Handle: uint32(*handle.Data()),
		LKey: e.Uint32(lkey), RKey: e.Uint32(rkey)})
}

func (c *context) deregMR(handle uint32) syscall.Errno {
	_, errno := write[none](c, uapi.IB_USER_VERBS_CMD_DEREG_MR, &uapi.IBUverbsDeregMR{MRHandle: handle})
	return errno
}

func (b *Backend) deregMR(address uint64) syscall.Errno {
	r := find[region](b, address)
	if r == nil {
		return syscall.EINVAL
	}
	c := r.domain.context
	if errno := c.deregMR(r.record.Handle); errno != 0 {
		return errno
	}
	b.forget(address)
	c.uses.Add(-1)
	free(b, r.record)
	return 0
}

// reregMR is ibv_rereg_mr, which returns an ibv.ReregMRErrCode and errno.
func (b *Backend) reregMR(a []uint64) (uint64, runtime.Errno) {
	fail := func(code ibv.ReregMRErrCode, errno syscall.Errno) (uint64, runtime.Errno) {
		return uint64(int64(code)), errno
	}
	r, flags := find[region](b, a[0]), ibv.ReregMRFlags(uint32(a[1]))
	changes := func(flag ibv.ReregMRFlags) bool { return flags&flag != 0 }
	if r == nil || flags&^ibv.REREG_MR_FLAGS_SUPPORTED != 0 || changes(ibv.REREG_MR_CHANGE_TRANSLATION) && a[4] == 0 ||
		!changes(ibv.REREG_MR_CHANGE_ACCESS) && uint32(a[5]) != 0 {
		return fail(ibv.REREG_MR_ERR_INPUT, syscall.EINVAL)
	}
	in := uapi.IBUverbsReregMR{MRHandle: r.record.Handle, Flags: uint32(flags)}
	var p *domain
	if changes(ibv.REREG_MR_CHANGE_PD) {
		if p = find[domain](b, a[2]); p == nil {
			return fail(ibv.REREG_MR_ERR_INPUT, syscall.EINVAL)
		}
		in.PDHandle = p.record.Handle
	}
	if changes(ibv.REREG_MR_CHANGE_TRANSLATION) {
		in.Start, in.HCAVA, in.Length = a[3], a[3], a[4]
	}
	if changes(ibv.REREG_MR_CHANGE_ACCESS) {
		in.AccessFlags = uapi.IBUverbsAccessFlags(a[5])
	}
	out, errno := write[uapi.IBUverbsReregMRResp](r.domain.context, uapi.IB_USER_VERBS_CMD_REREG_MR, &in)
	if errno != 0 {
		return fail(ibv.REREG_MR_ERR_CMD, errno)
	}
	r.record.LKey, r.record.RKey = out.LKey, out.RKey
	if p != nil {
		r.record.PD = ibv.PtrTo(p.record)
	}
	if changes(ibv.REREG_MR_CHANGE_TRANSLATION) {
		r.record.Addr, r.record.Length = uintptr(a[3]), a[4]
	}
	return 0, 0
}

// forkInit is ibv_fork_init. Where the kernel does not copy registered memory, libibverbs excludes it from children.
// That has to begin before the first registration, and this package does not do it.
func (b *Backend) forkInit([]uint64) syscall.Errno {
	switch {
	case b.kernel.CopyOnFork():
		return 0
	case b.registered.Load():
		return syscall.EINVAL
	}
	return syscall.ENOSYS
}

func (b *Backend) forkStatus([]uint64) (uint64, runtime.Errno) {
	if b.kernel.CopyOnFork() {
		return uint64(ibv.FORK_UNNEEDED), 0
	}
	return uint64(ibv.FORK_DISABLED), 0
}

// regMREx is ibv_reg_mr_ex, without dma-bufs, which regDMABuf registers, and other sources of memory.
func (b *Backend) regMREx(a []uint64) (uint64, runtime.Errno) {
	if a[1] == 0 {
		return 0, syscall.EINVAL
	}
	attr := ibv.Ptr[ibv.MRInitAttr](a[1]).Deref()
	const sources = ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_BUF
	switch of := attr.CompMask & sources; {
	case attr.CompMask&^(sources|ibv.REG_MR_MASK_IOVA|ibv.REG_MR_MASK_FD_OFFSET|ibv.REG_MR_MASK_DMAH) != 0:
		return 0, syscall.EOPNOTSUPP
	case of == 0 || of&(of-1) != 0:
		return 0, syscall.EINVAL
	case attr.CompMask&^(ibv.REG_MR_MASK_ADDR|ibv.REG_MR_MASK_IOVA) != 0:
		return 0, syscall.EOPNOTSUPP
	}
	iova := uint64(attr.Addr)
	if attr.CompMask&ibv.REG_MR_MASK_IOVA != 0 {
		iova = attr.IOVA
	}
	return b.regMR(a[0], uint64(attr.Addr), attr.Length, iova, attr.Access)
}

// adviseMR is the operation advise_mr.
func (b *Backend) adviseMR(pd, advice, flags, list, n, _ uint64) (uint64, runtime.Errno) {
	p := find[domain](b, pd)
	size := unsafe.Sizeof(ibv.SGE{}) // and of uapi.IBUverbsSGE
	if p == nil || list == 0 || uint32(n) == 0 || uint64(uint32(n)) > math.MaxUint16/uint64(size) {
		return uint64(syscall.EINVAL), 0
	}
	c := p.context
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_MR), uint16(uapi.UVERBS_METHOD_ADVISE_MR))
	if errno != 0 {
		return uint64(errno), 0
	}
	defer c.Put(r)
	length := int(uint32(n)) * int(size)
	memory, err := b.space.Alloc(length) // the list may be in Go's heap
	if err != nil {
		return uint64(syscall.ENOMEM), 0
	}
	defer b.space.Free(memory)
	copy(unsafe.Slice((*byte)(memory), length), listAt[byte](list, length))
	r.Attr(uint16(uapi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE), 0, uint64(p.record.Handle))
	r.Attr(uint16(uapi.UVERBS_ATTR_ADVISE_MR_ADVICE), 8, uint64(uint32(advice)))
	r.Attr(uint16(uapi.UVERBS_ATTR_ADVISE_MR_FLAGS), 4, uint64(uint32(flags)))
	r.Attr(uint16(uapi.UVERBS_ATTR_ADVISE_MR_SGE_LIST), uint16(length), uint64(uintptr(memory)))
	if errno = c.Send(&r); errno == syscall.EPROTONOSUPPORT { // the kernel has no such method for the device
		errno = syscall.EOPNOTSUPP
	}
	return uint64(errno), 0
}

// window is a memory window.
type window struct {
	domain *domain
	record *ibv.MW
}

func (b *Backend) allocMW(pd, kind, _, _, _, _ uint64) (uint64, runtime.Errno) {
	p := find[domain](b, pd)
	if p == nil {
		return 0, syscall.EINVAL
	}
	c := p.context
	out, errno := write[uapi.IBUverbsAllocMWResp](c, uapi.IB_USER_VERBS_CMD_ALLOC_MW,
		&uapi.IBUverbsAllocMW{PDHandle: p.record.Handle, MWType: uint8(kind)})
	if errno != 0 {
		return 0, errno
	}
	record, errno := allocate[ibv.MW](b)
	if errno != 0 {
		c.deallocMW(out.MWHandle)
		return 0, errno
	}
	*record = ibv.MW{Context: c.pointer(), PD: ibv.PtrTo(p.record), RKey: out.RKey, Handle: out.MWHandle,
		Type: ibv.MWType(uint32(kind))}
	c.uses.Add(1)
	b.enter(addressOf(record), &window{domain: p, record: record})
	return addressOf(record), 0
}

func (c *context) deallocMW(handle uint32) syscall.Errno {
	_, errno := write[none](c, uapi.IB_USER_VERBS_CMD_DEALLOC_MW, &uapi.IBUverbsDeallocMW{MWHandle: handle})
	return errno
}

func (b *Backend) deallocMW(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	w := find[window](b, address)
	if w == nil {
		return uint64(syscall.EINVAL), 0
	}
	c := w.domain.context
	if errno := c.deallocMW(w.record.Handle); errno != 0 {
		return uint64(errno), 0
	}
	b.forget(address)
	c.uses.Add(-1)
	free(b, w.record)
	return 0, 0
}

// bindMW is ibv_bind_mw of a window of type 1: a request to bind it under its next key.
func (b *Backend) bindMW(qp, mw, bind, _, _, _ uint64) (uint64, runtime.Errno) {
	w := find[window](b, mw)
	if w == nil || bind == 0 {
		return uint64(syscall.EINVAL), 0
	}
	of := ibv.Ptr[ibv.MWBind](bind).Deref()
	if of.BindInfo.MWAccessFlags&ibv.ACCESS_ZERO_BASED != 0 {
		return uint64(syscall.EINVAL), 0
	}
	request, errno := allocate[ibv.SendWR](b)
	if errno != 0 {
		return uint64(errno), 0
	}
	defer free(b, request)
	const variant = 0xff // the part of a key that a new one changes
	key := w.record.RKey&^variant | (w.record.RKey+1)&variant
	request.WRID, request.Opcode, request.SendFlags = of.WRID, ibv.WR_BIND_MW, of.SendFlags
	*request.BindMW() = ibv.SendBindMW{MW: ibv.PtrTo(w.record), RKey: key, BindInfo: of.BindInfo}
	result, _ := b.postSend(qp, addressOf(request), 0, 0, 0, 0)
	if result == 0 {
		w.record.RKey = key
	}
	return result, 0
}

// handle is an address handle.
type handle struct {
	domain *domain
	record *driver.AH
	known  bool // to the kernel
}

// ahAt is cqAt for address handles. NULL is none.
func (b *Backend) ahAt(address uint64) *handle {
	record := ibv.Ptr[driver.AH](address).Deref()
	if record == nil {
		return nil
	}
	if h := b.ahs.get(record.Index); h != nil && h.record == record {
		return h
	}
	return nil
}

func (b *Backend) createAH(a []uint64) (uint64, runtime.Errno) {
	p := find[domain](b, a[0])
	if p == nil || a[1] == 0 {
		return 0, syscall.EINVAL
	}
	return b.newAH(p, ibv.Ptr[ibv.AHAttr](a[1]).Deref())
}

func (b *Backend) newAH(p *domain, attr *ibv.AHAttr) (uint64, runtime.Errno) {
	c, h := p.context, &handle{domain: p}
	memory, err := b.space.Alloc(int(unsafe.Sizeof(*h.record) + c.own.AHSize()))
	if err != nil {
		return 0, syscall.ENOMEM
	}
	h.record = (*driver.AH)(memory)
	var out uapi.IBUverbsCreateAHResp
	errno := c.own.CreateAH(attr, h.record.Part(), command(c, uapi.IB_USER_VERBS_CMD_CREATE_AH,
		&uapi.IBUverbsCreateAH{UserHandle: addressOf(h.record), PDHandle: p.record.Handle, Attr: ahAttr(attr)}, &out,
		&h.known))
	if errno != 0 {
		if h.known {
			c.destroyAH(out.AHHandle)
		}
		b.space.Free(memory)
		return 0, errno
	}
	h.record.AH = ibv.AH{Context: c.pointer(), PD: ibv.PtrTo(p.record), Handle: out.AHHandle}
	h.record.Index = b.ahs.add(h)
	c.uses.Add(1)
	b.enter(addressOf(h.record), h)
	return addressOf(h.record), 0
}

func (c *context) destroyAH(handle uint32) syscall.Errno {
	_, errno := write[none](c, uapi.IB_USER_VERBS_CMD_DESTROY_AH, &uapi.IBUverbsDestroyAH{AHHandle: handle})
	return errno
}

func (b *Backend) destroyAH(address uint64) syscall.Errno {
	h := find[handle](b, address)
	if h == nil {
		return syscall.EINVAL
	}
	c := h.domain.context
	if h.known {
		if errno := c.destroyAH(h.record.Handle); errno != 0 {
			return errno
		}
	}
	b.forget(address)
	b.ahs.remove(h.record.Index)
	c.uses.Add(-1)
	free(b, h.record)
	return 0
}

func ahAttr(a *ibv.AHAttr) uapi.IBUverbsAHAttr {
	return uapi.IBUverbsAHAttr{
		GRH: uapi.IBUverbsGlobalRoute{DGID: *a.GRH.DGID.Raw(), FlowLabel: a.GRH.FlowLabel, SGIDIndex: a.GRH.SGIDIndex,
			HopLimit: a.GRH.HopLimit, TrafficClass: a.GRH.TrafficClass},
		DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: uint8(a.StaticRate), IsGlobal: a.IsGlobal,
		PortNum: a.PortNum}
}
