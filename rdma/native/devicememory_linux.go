// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// deviceMemory is memory of the device, which is mapped into the process.
type deviceMemory struct {
	context *context
	record  *ibv.DM
	own     driver.DM
	length  uint64
	uses    atomic.Int32 // regions
}

// allocDM is the operation alloc_dm.
func (b *Backend) allocDM(of, address, _, _, _, _ uint64) (uint64, runtime.Errno) {
	c, attr := find[context](b, of), ibv.Ptr[ibv.AllocDMAttr](address).Deref()
	if c == nil || attr == nil {
		return 0, syscall.EINVAL
	}
	d, ok := c.own.(driver.DeviceMemory)
	if !ok {
		return 0, syscall.EOPNOTSUPP
	}
	if attr.CompMask != 0 {
		return 0, syscall.EINVAL
	}
	x, errno := c.deviceEx()
	if errno != 0 {
		return 0, errno
	}
	if attr.Length > x.MaxDMSize {
		return 0, syscall.EINVAL
	}
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_DM), uint16(uapi.UVERBS_METHOD_DM_ALLOC))
	if errno != 0 {
		return 0, errno
	}
	defer c.Put(r)
	handle := r.Attr(uint16(uapi.UVERBS_ATTR_ALLOC_DM_HANDLE), 0, 0)
	r.Attr(uint16(uapi.UVERBS_ATTR_ALLOC_DM_LENGTH), 8, attr.Length)
	r.Attr(uint16(uapi.UVERBS_ATTR_ALLOC_DM_ALIGNMENT), 4, uint64(attr.LogAlignReq))
	m := &deviceMemory{context: c, length: attr.Length}
	if m.record, errno = allocate[ibv.DM](b); errno != 0 {
		return 0, errno
	}
	sent := false
	m.own, errno = d.AllocDM(&r, attr.Length, func() syscall.Errno {
		errno := c.Send(&r)
		sent = errno == 0
		return errno
	})
	if errno != 0 {
		if sent {
			c.freeDM(uint32(*handle.Data()))
		}
		free(b, m.record)
		return 0, errno
	}
	*m.record = ibv.DM{Context: c.pointer(), MemcpyToDM: b.slots.toDM, MemcpyFromDM: b.slots.fromDM,
		CompMask: ibv.DM_MASK_HANDLE, Handle: uint32(*handle.Data())}
	c.uses.Add(1)
	b.enter(addressOf(m.record), m)
	return addressOf(m.record), 0
}

func (c *context) freeDM(handle uint32) syscall.Errno {
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_DM), uint16(uapi.UVERBS_METHOD_DM_FREE))
	if errno != 0 {
		return errno
	}
	defer c.Put(r)
	r.Attr(uint16(uapi.UVERBS_ATTR_FREE_DM_HANDLE), 0, uint64(handle))
	return c.Send(&r)
}

// freeDM is the operation free_dm.
func (b *Backend) freeDM(address, _, _, _, _, _ uint64) (uint64, runtime.Errno) {
	m := find[deviceMemory](b, address)
	if m == nil {
		return uint64(syscall.EINVAL), 0
	}
	if errno := m.context.freeDM(m.record.Handle); errno != 0 {
		return uint64(errno), 0
	}
	b.forget(address)
	m.own.Free()
	m.context.uses.Add(-1)
	free(b, m.record)
	return 0, 0
}

// copyDM copies between the memory and the process. The device takes accesses of 4 bytes.
func (b *Backend) copyDM(address, offset, host, length uint64, read bool) (uint64, runtime.Errno) {
	m := find[deviceMemory](b, address)
	switch {
	case m == nil:
		return uint64(syscall.EINVAL), 0
	case offset > m.length || length > m.length-offset:
		return uint64(syscall.EFAULT), 0
	case length%4 != 0 || offset%4 != 0:
		return uint64(syscall.EINVAL), 0
	case length == 0:
		return 0, 0
	}
	own := unsafe.Slice((*uint32)(unsafe.Pointer(&m.own.Bytes()[offset])), length/4)
	program := listAt[uint32](host, int(length/4))
	if read {
		own, program = program, own
	}
	for i := range own { // copy may access other sizes
		own[i] = program[i]
	}
	return 0, 0
}

// toDM is the slot memcpy_to_dm of device memory, and fromDM memcpy_from_dm.
func (b *Backend) toDM(dm, offset, host, length, _, _ uint64) (uint64, runtime.Errno) {
	return b.copyDM(dm, offset, host, length, false)
}

func (b *Backend) fromDM(host, dm, offset, length, _, _ uint64) (uint64, runtime.Errno) {
	return b.copyDM(dm, offset, host, length, true)
}

// regDMMR is the operation reg_dm_mr. Addresses of the region begin at 0.
func (b *Backend) regDMMR(pd, dm, offset, length, access, _ uint64) (uint64, runtime.Errno) {
	const known = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC |
		ibv.ACCESS_ZERO_BASED | ibv.AccessFlags(ibv.IB_UVERBS_ACCESS_OPTIONAL_RANGE)
	p := find[domain](b, pd)
	if p == nil {
		return 0, syscall.EINVAL
	}
	if _, ok := p.context.own.(driver.DeviceMemory); !ok {
		return 0, syscall.EOPNOTSUPP
	}
	m, flags := find[deviceMemory](b, dm), ibv.AccessFlags(uint32(access))
	if m == nil || m.context != p.context || flags&^known != 0 || flags&ibv.ACCESS_ZERO_BASED == 0 {
		return 0, syscall.EINVAL
	}
	r, errno := p.context.Request(uint16(uapi.UVERBS_OBJECT_MR), uint16(uapi.UVERBS_METHOD_DM_MR_REG))
	if errno != 0 {
		return 0, errno
	}
	defer p.context.Put(r)
	handle := r.Attr(uint16(uapi.UVERBS_ATTR_REG_DM_MR_HANDLE), 0, 0)
	lkey := r.Output(uint16(uapi.UVERBS_ATTR_REG_DM_MR_RESP_LKEY), 4)
	rkey := r.Output(uint16(uapi.UVERBS_ATTR_REG_DM_MR_RESP_RKEY), 4)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DM_MR_PD_HANDLE), 0, uint64(p.record.Handle))
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DM_MR_DM_HANDLE), 0, uint64(m.record.Handle))
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DM_MR_OFFSET), 8, offset)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DM_MR_LENGTH), 8, length)
	r.Attr(uint16(uapi.UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS), 4, uint64(flags))
	if errno := p.context.Send(&r); errno != 0 {
		return 0, errno
	}
	e := binary.NativeEndian
	return b.newMR(p, ibv.MR{Length: length, Handle: uint32(*handle.Data()), LKey: e.Uint32(lkey), RKey: e.Uint32(rkey)})
}
