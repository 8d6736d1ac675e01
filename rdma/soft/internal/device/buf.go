// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// bufRecord is a buffer as programs know it: by its address alone.
type bufRecord struct{ _ uint64 }

// buf is memory that the device allocates for a program: plain memory, which any device takes.
type buf struct {
	*context
	record *bufRecord
	owner  *pd
	memory *offheap.Mapping
	length uint64
	freed  bool
	uses   int // regions, which keep the memory
}

func (b *buf) base() uint64 { return uint64(b.memory.Address()) }

// holds says whether a range is in the memory.
func (b *buf) holds(address, length uint64) bool {
	offset := address - b.base()
	return offset <= b.length && length <= b.length-offset
}

// allocBuf is ibv_alloc_buf. A buffer may be of no bytes, as C's may.
func allocBuf(of ibv.Ptr[ibv.PD], length uint64, handle ibv.Ptr[uintptr]) (uint64, runtime.Errno) {
	size := int(length)
	if handle == 0 {
		return 0, errnos.EINVAL
	}
	p := locked[pd](of)
	if p == nil {
		return 0, errnos.EINVAL
	}
	defer p.fabric().unlock()
	if size < 0 || uint64(size) != length {
		return 0, errnos.ENOMEM
	}
	record, errno := allocate[bufRecord](p.device)
	if errno != 0 {
		return 0, errno
	}
	memory, err := offheap.Map(max(size, 1), offheap.Options{})
	if err != nil {
		forget(record)
		return 0, errnos.ENOMEM
	}
	b := &buf{context: p.context, record: record, owner: p, memory: memory, length: length}
	p.uses++
	p.context.uses++
	enter(record, b)
	*handle.Deref() = uintptr(addressOf(record))
	return b.base(), 0
}

// freeBuf is ibv_free_buf. It cannot fail: memory that is registered stays until its last region is gone.
func freeBuf(of ibv.Ptr[bufRecord]) runtime.Errno {
	b := locked[buf](of)
	if b == nil {
		return 0
	}
	defer b.fabric().unlock()
	b.owner.uses--
	b.context.uses--
	forget(b.record)
	b.freed = true
	b.release()
	return 0
}

// release unmaps the memory when nobody has it any more.
func (b *buf) release() {
	if b.freed && b.uses == 0 {
		b.memory.Close()
	}
}

// regBufMR is ibv_reg_buf_mr.
func regBufMR(of ibv.Ptr[ibv.PD], handle, address, length uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	p := find[pd](of)
	if p == nil {
		return 0, errnos.EINVAL
	}
	return p.registerBuf(handle, address, length, address, access)
}

// registerBuf makes a region of a part of a buffer, which has to be of the same domain.
func (p *pd) registerBuf(handle, address, length, iova uint64, access ibv.AccessFlags) (uint64, runtime.Errno) {
	b := find[buf](handle)
	if b == nil || b.owner != p || !b.holds(address, length) {
		return 0, errnos.EINVAL
	}
	return p.register(address, length, iova, access, b)
}

// exportBuf is ibv_export_buf_dmabuf_fd: the memory is of no file.
func exportBuf(of ibv.Ptr[bufRecord]) runtime.Errno {
	if find[buf](of) == nil {
		return errnos.EINVAL
	}
	return errnos.ENODATA
}

// regMREx is ibv_reg_mr_ex, for what has an address.
func regMREx(of ibv.Ptr[ibv.PD], init ibv.Ptr[ibv.MRInitAttr]) (uint64, runtime.Errno) {
	p := find[pd](of)
	if p == nil || init == 0 {
		return 0, errnos.EINVAL
	}
	attr := init.Deref()
	mask := ibv.MRInitAttrMask(attr.CompMask)
	const known = ibv.REG_MR_MASK_IOVA | ibv.REG_MR_MASK_ADDR | ibv.REG_MR_MASK_BUF
	if mask&^known != 0 {
		return 0, errnos.EOPNOTSUPP
	}
	if mask&ibv.REG_MR_MASK_ADDR == 0 {
		return 0, errnos.EINVAL
	}
	iova := uint64(attr.Addr)
	if mask&ibv.REG_MR_MASK_IOVA != 0 {
		iova = attr.IOVA
	}
	if mask&ibv.REG_MR_MASK_BUF != 0 {
		return p.registerBuf(uint64(attr.Buf), uint64(attr.Addr), attr.Length, iova, attr.Access)
	}
	return p.register(uint64(attr.Addr), attr.Length, iova, attr.Access, nil)
}
