// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/fd"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/runtime"
)

// bufRecord is the record of a buffer, of which programs only have the address.
type bufRecord struct{ _ uint64 }

// Buf is memory that the device allocates for a program: plain memory, which any device can register.
type Buf struct {
	*Context
	record *bufRecord
	owner  *PD
	Memory *fd.Memory
	length uint64
	freed  bool
	uses   int // regions, which keep the memory
}

func (b *Buf) base() uint64 { return b.Memory.Address() }

// holds reports whether the memory contains a range.
func (b *Buf) holds(address, length uint64) bool {
	offset := address - b.base()
	return offset <= b.length && length <= b.length-offset
}

// allocBuf implements ibv_alloc_buf. A buffer may be empty, as in C.
func allocBuf(p *PD, length uint64, handle ibv.Ptr[uintptr]) (uint64, runtime.Errno) {
	size := int(length)
	if handle == 0 {
		return 0, syscall.EINVAL
	}
	if size < 0 || uint64(size) != length {
		return 0, syscall.ENOMEM
	}
	record, errno := allocate[bufRecord](p.Device)
	if errno != 0 {
		return 0, errno
	}
	memory, errno := fd.NewMemory(size)
	if errno != 0 {
		Forget(record)
		return 0, errno
	}
	b := &Buf{Context: p.Context, record: record, owner: p, Memory: memory, length: length}
	p.hold(1)
	p.Context.uses++
	Enter(record, b)
	*handle.Deref() = uintptr(mem.AddressOf(record))
	return b.base(), 0
}

// freeBuf implements ibv_free_buf. It cannot fail: registered memory stays until its last region is deregistered.
func freeBuf(of ibv.Ptr[bufRecord]) runtime.Errno {
	LockedDo(of, func(b *Buf) runtime.Errno {
		b.owner.hold(-1)
		b.freed = true
		b.release()
		b.Context.leave()
		Forget(b.record)
		return 0
	})
	return 0
}

// release unmaps the memory once it has no users.
func (b *Buf) release() {
	if b.freed && b.uses == 0 {
		b.Memory.Close()
	}
}

// regBufMR implements ibv_reg_buf_mr.
func regBufMR(p *PD, handle, address, length uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	return p.registerBuf(handle, address, length, address, access)
}

// registerBuf registers a part of a buffer, which must belong to the same domain.
func (p *PD) registerBuf(handle, address, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	b := Find[Buf](handle)
	if b == nil || b.owner.of != p.of || !b.holds(address, length) {
		return 0, syscall.EINVAL
	}
	return p.register(address, length, iova, access, backing{buf: b})
}

// exportBuf implements ibv_export_buf_dmabuf_fd. The descriptor keeps the memory.
func exportBuf(of ibv.Ptr[bufRecord]) (int32, runtime.Errno) {
	b := locked[Buf](of)
	if b == nil {
		return -1, syscall.EINVAL
	}
	defer b.Fabric().Unlock()
	return b.Memory.Export()
}

// regMREx implements ibv_reg_mr_ex.
func regMREx(p *PD, attr *ibv.MRInitAttr) (uint64, runtime.Errno) {
	mask := attr.CompMask
	const file = ibv.REG_MR_MASK_FD | ibv.REG_MR_MASK_FD_OFFSET
	const known = ibv.REG_MR_MASK_IOVA | ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_BUF | ibv.REG_MR_MASK_DMAH | file
	if mask&^known != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	var of backing
	if mask&ibv.REG_MR_MASK_DMAH != 0 {
		of.hints = findOn[dmah](p.Context, attr.DMAH)
		if of.hints == nil || attr.Access&ibv.ACCESS_ON_DEMAND != 0 ||
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

// regDMABufMR implements ibv_reg_dmabuf_mr.
func regDMABufMR(p *PD, offset, length, iova uint64, file int32, access ibv.AccessFlags) (uint64,
	runtime.Errno) {
	return p.registerFile(file, offset, length, iova, access)
}

// fileAccess are the access flags of regions of a dma-buf.
const fileAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ |
	ibv.ACCESS_REMOTE_ATOMIC | ibv.ACCESS_RELAXED_ORDERING

// registerFile registers a part of a file: a dma-buf or another file that can be mapped.
func (p *PD) registerFile(file int32, offset, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	if access&^fileAccess != 0 || (offset^iova)%PageSize != 0 {
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

// MaxDM is the size of device memory in bytes.
const MaxDM = 1 << 20

const maxDMAlign = 12 // log2 of the largest alignment that can be asked for

// dm is device memory, which programs cannot address.
type dm struct {
	*Context
	record *ibv.DM
	memory *fd.Memory
	length uint64
	uses   int // regions, of the one that was created
	imports[dm]
}

func (m *dm) base() uint64 { return m.memory.Address() }

// holds reports whether the memory contains a range.
func (m *dm) holds(offset, length uint64) bool {
	return offset <= m.length && length <= m.length-offset
}

// allocDM implements the operation alloc_dm.
func allocDM(c *Context, attr *ibv.AllocDMAttr) (uint64, runtime.Errno) {
	if attr.CompMask != 0 || attr.Length == 0 || attr.Length > MaxDM || attr.LogAlignReq > maxDMAlign {
		return 0, syscall.EINVAL
	}
	if c.Device.dmUsed+attr.Length > MaxDM {
		return 0, syscall.ENOMEM
	}
	record, errno := allocate[ibv.DM](c.Device)
	if errno != 0 {
		return 0, errno
	}
	memory, errno := fd.NewMemory(int(attr.Length))
	if errno != 0 {
		Forget(record)
		return 0, errno
	}
	*record = all.slots.dm
	record.Context, record.Handle = c.Address(), c.Device.handle()
	c.Device.dmUsed += attr.Length
	m := &dm{Context: c, record: record, memory: memory, length: attr.Length}
	m.of, m.handles = m, []*dm{m}
	return add(c, record, m)
}

// freeDM implements the operation free_dm.
func freeDM(m *dm) runtime.Errno {
	if errno := mayGo(m, m.record, func() bool { return m.of.uses > 0 }); errno != 0 {
		return errno
	}
	m.Device.dmUsed -= m.length
	m.memory.Close()
	dropHandles(m)
	return 0
}

// exportDM implements ibv_dm_export_dmabuf_fd. The descriptor keeps the memory.
func exportDM(of ibv.Ptr[ibv.DM]) (int32, runtime.Errno) {
	m := locked[dm](of)
	if m == nil {
		return -1, syscall.EINVAL
	}
	defer m.Fabric().Unlock()
	return m.memory.Export()
}

// regDMMR implements the operation reg_dm_mr. The region is zero-based.
func regDMMR(p *PD, address, offset, length uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	m := findOn[dm](p.Context, address)
	if m == nil || !m.holds(offset, length) || access&ibv.ACCESS_ZERO_BASED == 0 {
		return 0, syscall.EINVAL
	}
	if errno := p.Device.checkAccess(access); errno != 0 {
		return 0, errno
	}
	r, errno := p.newRegion(resource.Memory{Length: length, Base: m.base() + offset, Access: access}, 0)
	if errno != 0 {
		return 0, errno
	}
	r.dm = m.of
	r.dm.uses++
	return mem.AddressOf(r.record), 0
}

// memcpyToDM implements the slot memcpy_to_dm, and memcpyFromDM is memcpy_from_dm.
func memcpyToDM(m *dm, offset, host, length uint64) runtime.Errno {
	return m.copy(offset, length, host, func(device uint64) { mem.Move(device, host, length) })
}

func memcpyFromDM(m *dm, host, offset, length uint64) runtime.Errno {
	return m.copy(offset, length, host, func(device uint64) { mem.Move(host, device, length) })
}

// Offsets and lengths of a copy to or from device memory must be multiples of copyWords bytes: libmlx5 requires it, and
// only its devices have such memory.
const copyWords = 4

func (m *dm) copy(offset, length, host uint64, do func(device uint64)) runtime.Errno {
	if !m.holds(offset, length) || host == 0 && length > 0 {
		return syscall.EFAULT
	}
	if (offset|length)%copyWords != 0 {
		return syscall.EINVAL
	}
	do(m.base() + offset)
	return 0
}

// adviseMR implements the operation advise_mr: it pages in the parts of on-demand regions that a program is about to
// use.
func adviseMR(p *PD, advice ibv.IBUverbsAdviseMRAdvice, flags ibv.IBUverbsAdviseMRFlag, sges uint64,
	n uint32) runtime.Errno {
	writes := false
	switch advice {
	case ibv.ADVISE_MR_ADVICE_PREFETCH, ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
	case ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE:
		writes = true
	default:
		return syscall.EOPNOTSUPP
	}
	if flags&^ibv.ADVISE_MR_FLAG_FLUSH != 0 || n == 0 || sges == 0 {
		return syscall.EINVAL
	}
	for _, s := range mem.List[ibv.SGE](sges, int(n)) {
		if errno := p.prefetch(s, writes, advice == ibv.ADVISE_MR_ADVICE_PREFETCH_NO_FAULT); errno != 0 {
			return errno
		}
	}
	return 0
}

// prefetch checks and pages in a part of a region. If there is set, it only checks that all pages are present.
func (p *PD) prefetch(s ibv.SGE, writes, there bool) runtime.Errno {
	m := p.Device.Keys.Get(s.LKey)
	switch {
	case m == nil:
		return syscall.EFAULT
	case m.Window != nil:
		return syscall.EINVAL
	case m.Domain != p.domain():
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
