// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"runtime/debug"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// bufRecord is a buffer as programs know it: by its address alone.
type bufRecord struct{ _ uint64 }

// buf is memory that the device allocates for a program: plain memory, which any device takes.
type buf struct {
	*context
	record *bufRecord
	owner  *pd
	memory *fd.Memory
	length uint64
	freed  bool
	uses   int // regions, which keep the memory
}

func (b *buf) base() uint64 { return b.memory.Address() }

// holds reports whether a range is in the memory.
func (b *buf) holds(address, length uint64) bool {
	offset := address - b.base()
	return offset <= b.length && length <= b.length-offset
}

// allocBuf is ibv_alloc_buf. A buffer may be of no bytes, as C's may.
func allocBuf(of ibv.Ptr[ibv.PD], length uint64, handle ibv.Ptr[uintptr]) (uint64, runtime.Errno) {
	size := int(length)
	if handle == 0 {
		return 0, syscall.EINVAL
	}
	p := locked[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
	if size < 0 || uint64(size) != length {
		return 0, syscall.ENOMEM
	}
	record, errno := allocate[bufRecord](p.device)
	if errno != 0 {
		return 0, errno
	}
	memory, errno := fd.NewMemory(size)
	if errno != 0 {
		forget(record)
		return 0, errno
	}
	b := &buf{context: p.context, record: record, owner: p, memory: memory, length: length}
	p.hold(1)
	p.context.uses++
	enter(record, b)
	*handle.Deref() = uintptr(mem.AddressOf(record))
	return b.base(), 0
}

// freeBuf is ibv_free_buf. It cannot fail: memory that is registered stays until its last region is gone.
func freeBuf(of ibv.Ptr[bufRecord]) runtime.Errno {
	b := locked[buf](of)
	if b == nil {
		return 0
	}
	defer b.fabric().Unlock()
	b.owner.hold(-1)
	b.context.leave()
	forget(b.record)
	b.freed = true
	b.release()
	return 0
}

// release unmaps the memory once it has no users.
func (b *buf) release() {
	if b.freed && b.uses == 0 {
		b.memory.Close()
	}
}

// regBufMR is ibv_reg_buf_mr.
func regBufMR(of ibv.Ptr[ibv.PD], handle, address, length uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	p := find[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	return p.registerBuf(handle, address, length, address, access)
}

// registerBuf makes a region of a part of a buffer, which has to be of the same domain.
func (p *pd) registerBuf(handle, address, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	b := find[buf](handle)
	if b == nil || b.owner.made() != p.made() || !b.holds(address, length) {
		return 0, syscall.EINVAL
	}
	return p.register(address, length, iova, access, backing{buf: b})
}

// exportBuf is ibv_export_buf_dmabuf_fd. The descriptor keeps the memory.
func exportBuf(of ibv.Ptr[bufRecord]) (int32, runtime.Errno) {
	b := locked[buf](of)
	if b == nil {
		return -1, syscall.EINVAL
	}
	defer b.fabric().Unlock()
	return b.memory.Export()
}

// regMREx is ibv_reg_mr_ex.
func regMREx(domain ibv.Ptr[ibv.PD], init ibv.Ptr[ibv.MRInitAttr]) (uint64, runtime.Errno) {
	p := find[pd](domain)
	if p == nil || init == 0 {
		return 0, syscall.EINVAL
	}
	attr := init.Deref()
	mask := attr.CompMask
	const file = ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET
	const known = ibv.REG_MR_MASK_IOVA | ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_BUF | ibv.REG_MR_MASK_DMAH | file
	if mask&^known != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	var of backing
	if mask&ibv.REG_MR_MASK_DMAH != 0 {
		of.hints = find[dmah](uint64(attr.DMAH))
		if of.hints == nil || of.hints.device != p.device || attr.Access&ibv.ACCESS_ON_DEMAND != 0 ||
			mask&(file|ibv.REG_MR_MASK_BUF) != 0 {
			return 0, syscall.EINVAL
		}
	}
	if mask&file != 0 {
		if mask != file|ibv.REG_MR_MASK_IOVA {
			return 0, syscall.EINVAL
		}
		return p.registerFile(attr.FD, attr.FDOffset, attr.Length, attr.IOVA, attr.Access)
	}
	if mask&ibv.REG_MR_MASK_ADDR == 0 {
		return 0, syscall.EINVAL
	}
	iova := uint64(attr.Addr)
	if mask&ibv.REG_MR_MASK_IOVA != 0 {
		iova = attr.IOVA
	}
	if mask&ibv.REG_MR_MASK_BUF != 0 {
		return p.registerBuf(uint64(attr.Buf), uint64(attr.Addr), attr.Length, iova, attr.Access)
	}
	return p.register(uint64(attr.Addr), attr.Length, iova, attr.Access, of)
}

// regDMABufMR is ibv_reg_dmabuf_mr.
func regDMABufMR(of ibv.Ptr[ibv.PD], offset, length, iova uint64, file int32, access ibv.AccessFlags) (uint64,
	runtime.Errno) {
	p := find[pd](of)
	if p == nil {
		return 0, syscall.EINVAL
	}
	return p.registerFile(file, offset, length, iova, access)
}

// fileAccess are the flags that regions of a dma-buf can have.
const fileAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC | ibv.ACCESS_RELAXED_ORDERING

// registerFile makes a region of a part of a file: of a dma-buf, or of other memory that can be mapped.
func (p *pd) registerFile(file int32, offset, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	if access&^fileAccess != 0 || (offset^iova)%pageSize != 0 {
		return 0, syscall.EINVAL
	}
	mapped, errno := fd.MapMemory(file, offset, length, access&ibv.ACCESS_LOCAL_WRITE != 0)
	if errno != 0 {
		return 0, errno
	}
	r, errno := p.register(mapped.Address(), length, iova, access, backing{mapped: mapped, offset: offset})
	if errno != 0 {
		mapped.Close()
	}
	return r, errno
}

// maxDM is how much memory a device has, in bytes.
const maxDM = 1 << 20

const maxDMAlign = 12 // log2 of the largest alignment that can be asked for

// dm is memory of the device. Programs have no address of it.
type dm struct {
	*context
	record *ibv.DM
	memory *fd.Memory
	length uint64
	uses   int // regions, of the one that was made
	of     *dm // of an import: the memory that was made
	imports[dm]
}

// made is the memory that a program made, of which m may be an import.
func (m *dm) made() *dm {
	if m.of != nil {
		return m.of
	}
	return m
}

func (m *dm) base() uint64 { return m.memory.Address() }

// holds reports whether a range is in the memory.
func (m *dm) holds(offset, length uint64) bool {
	return offset <= m.length && length <= m.length-offset
}

// allocDM is the operation alloc_dm.
func allocDM(c *context, address uint64) (uint64, runtime.Errno) {
	if address == 0 {
		return 0, syscall.EINVAL
	}
	attr := mem.At[ibv.AllocDMAttr](address)
	if attr.CompMask != 0 || attr.Length == 0 || attr.Length > maxDM || attr.LogAlignReq > maxDMAlign {
		return 0, syscall.EINVAL
	}
	c.fabric().mu.Lock()
	defer c.fabric().Unlock()
	if c.device.dmUsed+attr.Length > maxDM {
		return 0, syscall.ENOMEM
	}
	record, errno := allocate[ibv.DM](c.device)
	if errno != 0 {
		return 0, errno
	}
	memory, errno := fd.NewMemory(int(attr.Length))
	if errno != 0 {
		forget(record)
		return 0, errno
	}
	*record = all.slots.dm
	record.Context, record.Handle = c.address(), c.device.handle()
	c.device.dmUsed += attr.Length
	c.uses++
	enter(record, &dm{context: c, record: record, memory: memory, length: attr.Length})
	return mem.AddressOf(record), 0
}

// freeDM is the operation free_dm.
func freeDM(address uint64) runtime.Errno {
	m := locked[dm](address)
	if m == nil {
		return syscall.EINVAL
	}
	defer m.fabric().Unlock()
	of := m.made()
	if errno := mayGo(m.fabric(), address, m, func() bool { return of.uses > 0 }); errno != 0 {
		return errno
	}
	m.device.dmUsed -= m.length
	m.memory.Close()
	for h := range handlesOf(of, &of.imports) {
		drop(h.context, h.record, "dm", h == m || h.left)
	}
	return 0
}

// exportDM is ibv_dm_export_dmabuf_fd. The descriptor keeps the memory.
func exportDM(of ibv.Ptr[ibv.DM]) (int32, runtime.Errno) {
	m := locked[dm](of)
	if m == nil {
		return -1, syscall.EINVAL
	}
	defer m.fabric().Unlock()
	return m.memory.Export()
}

// regDMMR is the operation reg_dm_mr. Addresses of the region count from 0.
func regDMMR(domain, address, offset, length, flags, _ uint64) (uint64, runtime.Errno) {
	p, access := locked[pd](domain), ibv.AccessFlags(flags)
	if p == nil {
		return 0, syscall.EINVAL
	}
	defer p.fabric().Unlock()
	m := find[dm](address)
	if m == nil || m.device != p.device || !m.holds(offset, length) ||
		access&ibv.ACCESS_ZERO_BASED == 0 {
		return 0, syscall.EINVAL
	}
	if errno := p.device.checkAccess(access); errno != 0 {
		return 0, errno
	}
	r, errno := p.newRegion(resource.Memory{Length: length, Base: m.base() + offset, Access: access}, 0)
	if errno != 0 {
		return 0, errno
	}
	r.dm = m.made()
	r.dm.uses++
	return mem.AddressOf(r.record), 0
}

// memcpyToDM is the slot memcpy_to_dm, and memcpyFromDM is memcpy_from_dm.
func memcpyToDM(address, offset, host, length, _, _ uint64) (uint64, runtime.Errno) {
	return uint64(copyDM(address, offset, length, host, func(device uint64) { mem.Move(device, host, length) })), 0
}

func memcpyFromDM(host, address, offset, length, _, _ uint64) (uint64, runtime.Errno) {
	return uint64(copyDM(address, offset, length, host, func(device uint64) { mem.Move(host, device, length) })), 0
}

// Offsets and lengths of a copy to or from device memory must be multiples of copyWords bytes: libmlx5 requires it, and
// only its devices have such memory.
const copyWords = 4

func copyDM(address, offset, length, host uint64, do func(device uint64)) runtime.Errno {
	m := locked[dm](address)
	if m == nil {
		return syscall.EINVAL
	}
	defer m.fabric().Unlock()
	if !m.holds(offset, length) || host == 0 && length > 0 {
		return syscall.EFAULT
	}
	if (offset|length)%copyWords != 0 {
		return syscall.EINVAL
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the host's memory may be gone
	do(m.base() + offset)
	return 0
}

// adviseMR is the operation advise_mr: it pages in the parts of on-demand regions that a program is about to use.
func adviseMR(domain, advice, flags, sges, n, _ uint64) (uint64, runtime.Errno) {
	writes := false
	switch ibv.IBUverbsAdviseMRAdvice(advice) {
	case ibv.ADVISE_MR_ADVICE_PREFETCH, ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
	case ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE:
		writes = true
	default:
		return uint64(syscall.EOPNOTSUPP), 0
	}
	if ibv.IBUverbsAdviseMRFlag(flags)&^ibv.ADVISE_MR_FLAG_FLUSH != 0 || uint32(n) == 0 || sges == 0 {
		return uint64(syscall.EINVAL), 0
	}
	p := locked[pd](domain)
	if p == nil {
		return uint64(syscall.EINVAL), 0
	}
	defer p.fabric().Unlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the list may be where no memory is
	for _, s := range mem.List[ibv.SGE](sges, int(uint32(n))) {
		if errno := p.prefetch(s, writes,
			ibv.IBUverbsAdviseMRAdvice(advice) == ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT); errno != 0 {
			return uint64(errno), 0
		}
	}
	return 0, 0
}

// prefetch checks and pages in a part of a region. If there is set, only pages that are present count, and it only
// checks.
func (p *pd) prefetch(s ibv.SGE, writes, there bool) runtime.Errno {
	m := p.device.keys.Get(s.LKey)
	switch {
	case m == nil:
		return syscall.EFAULT
	case m.Window != nil:
		return syscall.EINVAL
	case m.Domain != p.protects():
		return syscall.EPERM
	}
	place, ok := m.Locate(s.Addr, uint64(s.Length), 0)
	switch {
	case !ok, m.Access&ibv.ACCESS_ON_DEMAND == 0:
		return syscall.EFAULT
	case writes && m.Access&ibv.ACCESS_LOCAL_WRITE == 0:
		return syscall.EPERM
	case there, s.Length == 0:
		return 0
	}
	return accessible(place.Base, place.Length, writes)
}
